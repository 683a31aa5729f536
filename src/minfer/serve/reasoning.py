"""Thoughts and answer, told apart: models that think first write their thoughts between `<think>` and `</think>`."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from minfer.serve.marks import n_held

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class _Place(Enum):
    BEFORE = auto()
    THOUGHT = auto()
    AFTER_THOUGHT = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """Splits a stream of text into (thoughts, answer). Only what stands at its very beginning is taken for thoughts.

    White space around the thoughts belongs to neither side, as the models' own templates have it.
    """

    def __init__(self, *, starts_in_thought: bool) -> None:
        """
        Args:
            starts_in_thought: whether the prompt has already opened the thoughts.
        """
        self._place = _Place.THOUGHT if starts_in_thought else _Place.BEFORE
        self._held = ""
        self._has_thought = False

    def push(self, text: str) -> tuple[str, str]:
        """What the next piece of text adds to the thoughts and to the answer."""
        self._held += text
        thought = ""
        if self._place is _Place.BEFORE:
            self._begin()
        if self._place is _Place.THOUGHT:
            thought = self._think()
        if self._place is _Place.AFTER_THOUGHT:
            self._held = self._held.lstrip()
            if self._held:
                self._place = _Place.ANSWER
        answer = ""
        if self._place is _Place.ANSWER:
            answer, self._held = self._held, ""
        return thought, answer

    def finish(self) -> tuple[str, str]:
        """What was held back until the end."""
        held, self._held = self._held, ""
        return (held.rstrip(), "") if self._place is _Place.THOUGHT else ("", held)

    def _begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._held = start.removeprefix(OPEN)
            self._place = _Place.THOUGHT
        elif start and not OPEN.startswith(start):
            self._place = _Place.ANSWER

    def _think(self) -> str:
        if not self._has_thought:
            self._held = self._held.lstrip()
        thought, end, rest = self._held.partition(CLOSE)
        if end:
            self._held = rest
            self._place = _Place.AFTER_THOUGHT
            thought = thought.rstrip()
        else:
            n_open = n_held(self._held, CLOSE)
            safe = self._held[: len(self._held) - n_open]
            thought = safe.rstrip()  # white space may turn out to stand before the end
            self._held = self._held[len(thought) :]
        self._has_thought = self._has_thought or bool(thought)
        return thought
