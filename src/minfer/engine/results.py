"""What a generation gives back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from minfer.errors import ParameterError
from minfer.sampling import TokenLogprobs


class FinishReason(StrEnum):
    """Why a generation ended, in the terms that OpenAI's clients know."""

    STOP = "stop"
    """the model ended its answer, or a stop string was met"""
    LENGTH = "length"
    """max_tokens, or the end of the context"""
    CANCELLED = "cancelled"
    """the caller stopped reading"""


class StopCause(StrEnum):
    """What exactly ended a generation."""

    END_OF_GENERATION = "end_of_generation"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_END = "context_end"
    CANCELLED = "cancelled"

    @property
    def finish_reason(self) -> FinishReason:
        match self:
            case StopCause.END_OF_GENERATION | StopCause.STOP_STRING:
                return FinishReason.STOP
            case StopCause.MAX_TOKENS | StopCause.CONTEXT_END:
                return FinishReason.LENGTH
            case StopCause.CANCELLED:
                return FinishReason.CANCELLED


@dataclass
class Work:
    """What has been done for an answer, counted by whoever runs the model. `Stats` says what is what."""

    n_prefill_tokens: int = 0
    prefill_s: float = 0.0
    n_decode_tokens: int = 0
    decode_s: float = 0.0
    n_cached_tokens: int = 0
    n_dropped_tokens: int = 0

    def add(self, other: Work) -> None:
        """Adds what has been done for another answer."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True)
class Stats:
    """Counts and seconds. Prefill is the prompt; decode is every token that was generated after the first."""

    n_prefill_tokens: int
    """prompt tokens that were computed"""
    prefill_s: float
    n_decode_tokens: int
    decode_s: float
    seed: int
    """the seed that was used; with the same parameters it gives the same tokens again"""
    n_cached_tokens: int = 0
    """prompt tokens that did not have to be computed, since the cache held them"""
    n_dropped_tokens: int = 0
    """tokens that were dropped from the context to make room"""

    @classmethod
    def of(cls, work: Work, seed: int) -> Stats:
        """The statistics of finished work."""
        return cls(seed=seed, **vars(work))

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens of the prompt, computed or cached."""
        return self.n_prefill_tokens + self.n_cached_tokens

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.n_prefill_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        return self.n_decode_tokens / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True)
class Generation:
    """A finished answer. The end-of-generation token is not among `tokens`; a stop string is not in `text`."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop_cause: StopCause
    stats: Stats
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """one for each token, where they were asked for"""

    @property
    def mean_logprob(self) -> float:
        """The mean log probability of its tokens, 0 of none: the higher, the likelier the model found its own answer.

        Raises:
            ParameterError: logprobs were not asked for.
        """
        if self.logprobs is None:
            raise ParameterError("the answer has no logprobs; ask for them with logprobs=0")
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs) if self.logprobs else 0.0
