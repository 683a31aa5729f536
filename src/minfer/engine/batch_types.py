"""What goes into the batch engine and what comes out: requests, and events that tell of them.

For each request the events are, in this order,

    Started -> PromptProgress* -> PromptLogprobs* -> (SampleDelta | SampleDone)*

with one `SampleDone` for each sample, or, in place of what is still missing, one `Failed`. After the last `SampleDone`,
or after `Failed`, nothing more is told of the request, and its pages have been given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minfer.engine.results import StopCause
from minfer.sampling import SamplingParams, TokenLogprobs


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """One prompt, and what is to be generated after it."""

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams
    """of sample 0; sample i takes `seed + i` modulo 2**64, or a random seed of its own where there is none"""
    max_tokens: int
    """for each sample; 0, which only scores the prompt, goes with `prompt_logprobs`"""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    continues_text: bool = True
    """whether the answer goes on with the prompt's text, and so may begin with a space of its own"""
    n_samples: int = 1
    """independent continuations; they share the prompt's pages"""
    logprobs: int | None = None
    """how many alternatives of each generated token are reported; the chosen token always is. None: no logprobs"""
    prompt_logprobs: int | None = None
    """the same for the tokens of the prompt, all of which are then computed"""
    reuse_prefix: bool = True
    """whether the prompt's beginning may come from the cache of earlier sequences; the answer is the same"""


@dataclass(frozen=True)
class Started:
    """The request left the queue. `n_cached_tokens` of its prompt need not be computed."""

    n_cached_tokens: int


@dataclass(frozen=True)
class PromptProgress:
    """So many of the prompt's tokens are computed, the cached ones among them."""

    n_done: int
    n_total: int


@dataclass(frozen=True)
class PromptLogprobs:
    """The logprobs of the next tokens of the prompt, from its second on: the first has none. In order."""

    entries: tuple[TokenLogprobs, ...]


@dataclass(frozen=True)
class SampleDelta:
    """Text of a sample that became safe to show, and the tokens that it came from, which may be none or many.

    `logprobs` has an entry for each of the tokens, or is empty where none were asked for.
    """

    sample: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SampleStats:
    """Counts and seconds of one sample. What samples share, the prompt, is told in each of them."""

    n_prompt_tokens: int
    n_cached_tokens: int
    n_generated_tokens: int
    """all that were sampled, an end-of-generation token not counted"""
    queue_s: float
    """from `submit` until `Started`"""
    prefill_s: float
    """from `Started` until the first token"""
    decode_s: float
    """from the first token until the end"""
    seed: int


@dataclass(frozen=True)
class SampleDone:
    """A sample is over."""

    sample: int
    cause: StopCause
    stats: SampleStats


@dataclass(frozen=True)
class Failed:
    """The request can't be answered: the engine met an error, or it is closing."""

    error: Exception


Event = Started | PromptProgress | PromptLogprobs | SampleDelta | SampleDone | Failed
EventListener = Callable[[Event], None]
"""Called by the engine's thread, in order; returns at once and raises nothing."""


@dataclass(frozen=True)
class StepReport:
    """One step of the model over a batch."""

    duration_s: float
    n_sequences: int
    n_prefill_tokens: int
    n_decode_tokens: int


StepListener = Callable[[StepReport], None]
"""Called by the engine's thread after each step; returns at once and raises nothing."""


@dataclass(frozen=True, kw_only=True)
class EngineSnapshot:
    """What an engine is doing now, and what it did since its start."""

    n_queued: int
    n_active: int
    """requests that left the queue and are not over"""
    n_pages: int
    n_free_pages: int
    """pages that nothing is in"""
    n_cached_pages: int
    """pages that only finished sequences hold; they are given up when others need them"""
    n_prefilled_tokens: int
    n_reused_tokens: int
    n_generated_tokens: int
