"""Where a conversation stands between two turns, and how JSON holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from minfer.engine.prompts import Message
from minfer.engine.transcript import Span, Transcript
from minfer.sampling import SamplerState
from minfer.text import GUARD
from minfer.text.messages import plain_messages


@dataclass(frozen=True)
class ChatState:
    """What a conversation is made of, but for its cache."""

    messages: tuple[Message, ...] = ()
    n_forgotten: int = 0
    """messages after the system prompt that are in the context no more"""
    transcript: Transcript = field(default_factory=Transcript)
    """those that are in the context, as they were computed"""
    sampler: SamplerState | None = None
    """where the sampler of the last answer stood at its end; None before the first answer"""


def to_json(state: ChatState) -> dict[str, Any]:
    """The state as JSON holds it. Texts are cut at their guards, lone surrogates that UTF-8 can't hold."""
    return {
        "messages": [dict(message) for message in state.messages],
        "n_forgotten": state.n_forgotten,
        "spans": [
            [span.text.split(GUARD), list(span.tokens), span.is_special, span.is_answer]
            for span in state.transcript.spans
        ],
        "sampler": None if state.sampler is None else asdict(state.sampler),
    }


def from_json(saved: Mapping[str, Any]) -> ChatState:
    """The state that `to_json` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is not what `to_json` writes.
    """
    messages = plain_messages(saved["messages"]) if saved["messages"] else []
    spans = [
        Span(GUARD.join(parts), tuple(map(int, tokens)), bool(is_special), bool(is_answer))
        for parts, tokens, is_special, is_answer in saved["spans"]
    ]
    n_forgotten, sampler = int(saved["n_forgotten"]), saved["sampler"]
    if not 0 <= n_forgotten <= len(messages):
        raise ValueError(f"{n_forgotten} of {len(messages)} messages are forgotten")
    return ChatState(
        messages=tuple(messages),
        n_forgotten=n_forgotten,
        transcript=Transcript(tuple(spans)),
        sampler=None if sampler is None else SamplerState(**sampler),
    )
