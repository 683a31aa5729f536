"""/v1/completions: its request and its answers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from minfer.engine.answer import UNLIMITED
from minfer.serve.schema_common import (
    MAX_TOKENS,
    GenerationFields,
    PromptProgressReport,
    SamplingReport,
    Text,
    Timings,
    Unsupported,
    Usage,
    is_none,
)
from minfer.serve.schema_sampling import TokenId

DEFAULT_MAX_TOKENS: Final = 16
MAX_LOGPROBS: Final = 20
MAX_PROMPT_TOKENS: Final = 2**20

TokenPrompt = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]


class CompletionRequest(GenerationFields):
    """Text to be continued."""

    prompt: (
        Text
        | TokenPrompt
        | Annotated[list[Text], Field(min_length=1, max_length=4096)]
        | Annotated[list[TokenPrompt], Field(min_length=1, max_length=4096)]
    ) = Field(description="Text or token ids, or several of one kind. Special tokens in text are parsed.")
    max_tokens: int | None = Field(
        None, ge=UNLIMITED, le=MAX_TOKENS, description="16 by default; 0 goes with echo; -1 is as many as fit."
    )
    echo: bool | None = Field(None, description="The prompt is part of the answer, and of its logprobs.")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="So many alternatives for each token.")
    best_of: int | None = Field(None, ge=1, le=1)
    suffix: Unsupported = None


class CompletionLogprobs(BaseModel):
    """Four lists, with an entry for each token. The first token of an echoed prompt has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="Where the token begins, in characters of the text.")


class CompletionChoice(BaseModel):
    """One of the answers. In a stream, what is new in it; `finish_reason` comes with the last piece."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None


class CompletionResponse(BaseModel):
    """The answers, those to the first prompt first; also an event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = Field(default=None, exclude_if=is_none)
    timings: Timings | None = Field(default=None, exclude_if=is_none)
    sampling: SamplingReport | None = Field(default=None, exclude_if=is_none)
    prompt_progress: PromptProgressReport | None = Field(default=None, exclude_if=is_none)
