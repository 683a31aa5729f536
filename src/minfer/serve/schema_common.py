"""What the requests and answers of both kinds of completions have in common.

Some fields have one neutral value, which is taken because clients send it unasked.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from minfer.engine import DefaultSampling
from minfer.engine.answer import UNLIMITED
from minfer.sampling import SamplingParams
from minfer.serve.schema_sampling import OnlyFalse, SamplingFields, StrictModel

MAX_SAMPLES: Final = 128
MAX_TOKENS: Final = 2**31 - 1

Text = Annotated[str, Field(max_length=16 * 2**20)]
StopString = Annotated[str, Field(min_length=1, max_length=1024)]
Label = Annotated[str, Field(max_length=1024, description="A label of the client's own; without effect.")]
Unsupported = Annotated[None, Field(description="Not supported; null is taken, since clients send it unasked.")]


class StreamOptions(StrictModel):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: OnlyFalse | None = None


class GenerationFields(SamplingFields):
    """What all requests for text have in common."""

    model: str | None = Field(None, max_length=256, description="A name that /v1/models lists.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_SAMPLES, description="Independent answers to the same prompt.")
    stop: StopString | Annotated[list[StopString], Field(max_length=64)] | None = Field(
        None, description="Strings that end the answer, and are not part of it."
    )
    max_tokens: int | None = Field(None, ge=UNLIMITED, le=MAX_TOKENS)
    ignore_eos: bool | None = Field(None, description="Go on when the model ends its answer.")
    cache_prompt: bool | None = Field(None, description="Reuse what was computed for earlier prompts (default).")
    return_progress: bool | None = Field(None, description="A stream tells how much of the prompt has been read.")
    user: Label | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


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


class SamplingReport(BaseModel):
    """How tokens were, or are, chosen; parameters that few set are not told."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    defaults_from: Literal["file", "catalogue", "minfer"] = Field(
        description="Who recommends the values that a request does not give: the model's file, minfer's catalogue of "
        "known models, or nobody, so that they are minfer's own."
    )


def sampling_report(params: SamplingParams, defaults: DefaultSampling) -> SamplingReport:
    """Tells the parameters, and the source of those that were not given."""
    return SamplingReport(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repeat_penalty=params.repetition_penalty,
        defaults_from=defaults.source.value,
    )


class PromptProgressReport(BaseModel):
    """How much of the prompt has been read."""

    total: int
    cache: int
    processed: int
    time_ms: float
