"""How an answer is shown: thinking dimmed where that is possible, and nothing that a terminal would obey."""

from __future__ import annotations

import sys

from rich.console import Console

from minfer.cli.console import printable, write_text
from minfer.engine import AnswerPart
from minfer.text.template.continuation import CLOSE_TAG, OPEN_TAG

_DIM, _NOT_DIM = "\x1b[2m", "\x1b[22m"


class AnswerView:
    """Shows one answer after another on stdout. Where that is no terminal, only the answers themselves, as they are."""

    def __init__(self) -> None:
        console = Console()
        self._is_terminal = sys.stdout.isatty()
        self._can_dim = self._is_terminal and not console.is_dumb_terminal and not console.no_color
        self._is_thinking = False
        self._at_line_start = True

    def write(self, part: AnswerPart) -> None:
        """Shows the next piece."""
        if part.is_thinking and not self._is_terminal:
            return
        if part.is_thinking is not self._is_thinking:
            self._switch()
        text = part.text
        if self._is_terminal:
            text = printable(text.lstrip("\n") if part.is_thinking and self._at_line_start else text)
        self._write(text)

    def end(self) -> None:
        """Ends the answer, so that what follows stands on a line of its own."""
        if self._is_thinking:
            self._switch()
        elif not self._at_line_start:
            self._write("\n")
        self._at_line_start = True

    def _switch(self) -> None:
        self._is_thinking = not self._is_thinking
        if self._is_thinking:
            write_text(_DIM if self._can_dim else f"{OPEN_TAG}\n")
            return
        if not self._at_line_start:
            self._write("\n")
        write_text(_NOT_DIM if self._can_dim else f"{CLOSE_TAG}\n")
        self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            write_text(text)
            self._at_line_start = text.endswith("\n")
