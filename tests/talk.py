"""Talking with a model in tests."""

from __future__ import annotations

from typing import Any

import minfer


def say(conversation: minfer.Conversation, text: str, **options: Any) -> minfer.Generation:
    stream = conversation.ask(text, **options)
    for _ in stream:
        pass
    return stream.result
