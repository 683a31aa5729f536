"""What the requests and answers of several endpoints have in common.

A field that is not declared is refused by name, and so is a value of another type than declared: nothing that a client
asks for is left out in silence. Some fields have one neutral value, which is taken because clients send it unasked.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from minfer.sampling import SamplingParams
from minfer.serve.errors import invalid

MAX_SAMPLES: Final = 128
MAX_TOKENS: Final = 2**31 - 1
MAX_BIASES: Final = 1024
_DEFAULTS: Final = SamplingParams()

Text = Annotated[str, Field(max_length=16 * 2**20)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Bias = Annotated[
    Annotated[float, Field(ge=-1000, le=1000)] | Literal[False],
    Field(union_mode="left_to_right"),  # else 0 could be taken for False
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
BiasPair = Annotated[tuple[TokenId, Bias], Field(strict=False)]  # JSON has no tuples


class StrictModel(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(StrictModel):
    """What a stream holds besides the answer."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class SamplingFields(StrictModel):
    """How tokens are chosen: names and meanings of llama.cpp's server, and OpenAI's where both have one."""

    temperature: float | None = Field(None, ge=0, le=100, description="0 always takes the likeliest token.")
    top_k: int | None = Field(None, ge=0, le=2**31 - 1, description="Keep the k likeliest tokens; 0 is off.")
    top_p: float | None = Field(None, gt=0, le=1, description="Keep the likeliest that together reach p; 1 is off.")
    min_p: float | None = Field(
        None, ge=0, le=1, description="Keep tokens at least p times as likely as the likeliest."
    )
    repeat_penalty: float | None = Field(None, gt=0, le=100, description="Of tokens seen; 1 is off.")
    repeat_last_n: int | None = Field(None, ge=-1, le=2**31 - 1, description="Tokens that count as seen; -1 is all.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: (
        Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)]
        | Annotated[list[BiasPair], Field(max_length=MAX_BIASES)]
        | None
    ) = Field(None, description="Token id -> what is added to its logit; false bans the token.")
    seed: int | None = Field(None, ge=-1, lt=2**63, description="The same seed gives the same answer; -1 is random.")

    def sampling_params(self) -> SamplingParams:
        """The parameters as the sampler takes them; what is not given has its default.

        Raises:
            ApiError: a token in `logit_bias` that is no id.
        """
        names = {"repeat_penalty": "repetition_penalty", "repeat_last_n": "penalty_window"}
        given: dict[str, Any] = {
            names.get(name, name): value
            for name in SamplingFields.model_fields
            if name not in ("logit_bias", "seed") and (value := getattr(self, name)) is not None
        }
        seed = None if self.seed == -1 else self.seed
        return SamplingParams(**given, logit_bias=self.biases(), seed=seed)

    def biases(self) -> dict[int, float]:
        """`logit_bias` by token id.

        Raises:
            ApiError: a key that is no id.
        """
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias or ()
        biases = {}
        for key, bias in pairs:
            token = str(key)
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise invalid(f"logit_bias: {token!r} is no token id", "logit_bias", "invalid_value")
            biases[int(token)] = -math.inf if bias is False else float(bias)
        return biases


class GenerationFields(SamplingFields):
    """What all requests for text have in common."""

    model: str | None = Field(None, max_length=256, description="A name that /v1/models lists.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_SAMPLES, description="Independent answers to the same prompt.")
    stop: StopString | Annotated[list[StopString], Field(max_length=64)] | None = Field(
        None, description="Strings that end the answer, and are not part of it."
    )
    max_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    ignore_eos: bool | None = Field(None, description="Go on when the model ends its answer.")
    cache_prompt: bool | None = Field(None, description="Reuse what was computed for earlier prompts (default).")
    return_progress: bool | None = Field(None, description="A stream tells how much of the prompt has been read.")
    user: str | None = Field(None, max_length=1024, description="A label of the client's own.")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


def is_none(value: object) -> bool:
    """For fields of answers that are left out where there is nothing to tell."""
    return value is None


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Timings(BaseModel):
    """Counts and times as llama.cpp's server tells them; with several samples, of all together."""

    cache_n: int = Field(description="prompt tokens that were in the cache")
    prompt_n: int = Field(description="prompt tokens that were computed")
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class PromptProgressReport(BaseModel):
    """How much of the prompt has been read."""

    total: int
    cache: int
    processed: int
    time_ms: float
