"""Tokens as answers show them."""

from __future__ import annotations

from typing import Any, Final

from minfer.serve.engine_protocol import TokenLogprobs
from minfer.serve.schema_chat import ContentLogprob, TopLogprob
from minfer.text import Tokenizer

LEAST_LOGPROB: Final = -9999.0
"""Stands for a probability of zero, whose logarithm JSON can't hold; OpenAI's own value for it."""


def shown(tokenizer: Tokenizer, token: int) -> str:
    """The text of one token; bytes that are no UTF-8 by themselves become U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def finite(logprob: float) -> float:
    """A logprob that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)


def content_logprob(tokenizer: Tokenizer, entry: TokenLogprobs) -> ContentLogprob:
    """A token of a chat answer with its alternatives."""
    return ContentLogprob(
        **_fields(tokenizer, entry.token, entry.logprob),
        top_logprobs=[TopLogprob(**_fields(tokenizer, token, logprob)) for token, logprob in entry.top],
    )


def _fields(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}
