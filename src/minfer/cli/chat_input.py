"""Where messages come from: a terminal with line editing, or a pipe."""

from __future__ import annotations

import sys
from typing import Protocol

from minfer.cli.stdin import InputError, decoded, is_closed

_QUOTES = '"""'
PROMPT, CONTINUATION = ">>> ", "... "


class Input(Protocol):
    """Gives what the user enters."""

    def read(self) -> str | None:
        """The next entry, without the quotes of one of several lines; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            ParameterError: what was piped in is not UTF-8.
            InputError: stdin can't be read.
        """
        ...


class LineInput:
    """Lines from stdin; several between triple quotes are one entry."""

    def __init__(self, *, shows_prompt: bool = False) -> None:
        """
        Args:
            shows_prompt: for a terminal that can do nothing but write lines.
        """
        self._shows_prompt = shows_prompt

    def read(self) -> str | None:
        entry = self._line(PROMPT)
        while entry is not None and is_open(entry):
            line = self._line(CONTINUATION)
            if line is None:
                break
            entry += f"\n{line}"
        return None if entry is None else unquoted(entry)

    def _line(self, prompt: str) -> str | None:
        if self._shows_prompt:
            print(prompt, end="", file=sys.stderr, flush=True)  # noqa: T201
        try:
            data = sys.stdin.buffer.readline()
        except OSError as error:
            if is_closed(error):
                return None
            raise InputError(error) from error
        return decoded(data).rstrip("\r\n") if data else None


def is_open(entry: str) -> bool:
    """Whether triple quotes at the start of an entry have not been closed."""
    text = entry.strip()
    return text.startswith(_QUOTES) and (len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES))


def unquoted(entry: str) -> str:
    """An entry without triple quotes around it."""
    text = entry.strip()
    if not text.startswith(_QUOTES):
        return entry
    return text.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
