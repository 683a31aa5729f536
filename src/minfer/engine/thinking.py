"""Telling what a model thinks from what it says: a `<think>` block before the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from minfer.engine.stops import overlap
from minfer.text.template.continuation import CLOSE_TAG, OPEN_TAG


@dataclass(frozen=True)
class AnswerPart:
    """A piece of an answer's text; never empty."""

    text: str
    is_thinking: bool


class _State(Enum):
    BEFORE = 0
    """nothing but white space so far"""
    THINKING = 1
    BETWEEN = 2
    """after the thinking, before the answer"""
    ANSWER = 3


class ThinkingSplitter:
    """Splits the text of an answer, wherever its pieces are cut. A thinking block is one at the very start.

    Its tags are left out, and so is the white space between thinking and answer. An answer without thinking passes
    through unchanged.
    """

    def __init__(self, starts_inside: bool = False) -> None:
        """
        Args:
            starts_inside: whether the prompt has opened the block already.
        """
        self._state = _State.THINKING if starts_inside else _State.BEFORE
        self._held = ""

    def push(self, text: str) -> list[AnswerPart]:
        """Takes the next piece of text; gives what is decided."""
        self._held += text
        parts: list[AnswerPart] = []
        while (part := self._next()) is not None:
            if part.text:
                parts.append(part)
        return parts

    def finish(self) -> list[AnswerPart]:
        """What is left at the end of the text."""
        text = self._held.lstrip() if self._state is _State.BETWEEN else self._held
        self._held = ""
        return [AnswerPart(text, self._state is _State.THINKING)] if text else []

    def _next(self) -> AnswerPart | None:
        """The next part, perhaps an empty one; None if there is nothing to decide before more text comes."""
        text = self._held
        match self._state:
            case _State.BEFORE:
                start = text.lstrip()
                if start.startswith(OPEN_TAG):
                    return self._step(_State.THINKING, "", start[len(OPEN_TAG) :])
                return None if OPEN_TAG.startswith(start) else self._step(_State.ANSWER, "", text)
            case _State.THINKING:
                thought, tag, rest = text.partition(CLOSE_TAG)
                if tag:
                    return self._step(_State.BETWEEN, thought, rest, is_thinking=True)
                n_safe = len(text) - overlap(text, CLOSE_TAG)
                return self._step(_State.THINKING, text[:n_safe], text[n_safe:], is_thinking=True) if n_safe else None
            case _State.BETWEEN:
                start = text.lstrip()
                return self._step(_State.ANSWER, "", start) if start else None
            case _State.ANSWER:
                return self._step(_State.ANSWER, text, "") if text else None

    def _step(self, state: _State, text: str, rest: str, *, is_thinking: bool = False) -> AnswerPart:
        self._state, self._held = state, rest
        return AnswerPart(text, is_thinking)


def split_stream(pieces: Iterable[str], starts_inside: bool = False) -> Iterator[AnswerPart]:
    """The parts of an answer, as its pieces of text come."""
    splitter = ThinkingSplitter(starts_inside)
    for piece in pieces:
        yield from splitter.push(piece)
    yield from splitter.finish()


def split_thinking(text: str, starts_inside: bool = False) -> tuple[str, str]:
    """The thinking (without white space around it) and the answer in a whole text."""
    parts = list(split_stream([text], starts_inside))
    thinking, answer = ("".join(part.text for part in parts if part.is_thinking is kind) for kind in (True, False))
    return thinking.strip(), answer


def opens_thinking(prompt: str) -> bool:
    """Whether a prompt ends with the start of a thinking block."""
    return prompt.rstrip().endswith(OPEN_TAG)


def continues_thinking(content: str, thoughts: str = "") -> bool:
    """Whether what follows a message that is gone on with is still thinking."""
    if content.strip():
        return content.lstrip().startswith(OPEN_TAG) and CLOSE_TAG not in content
    return bool(thoughts.strip())
