"""What the server asks of an engine that computes many requests together; `minfer.engine.BatchEngine` is one.

One thread of the engine owns the model. The web side hands requests over with `Engine.submit`, and is told of what
happens by calls of `on_event` from the engine's thread (`engine/batch_types.py` says which); it never waits for the
engine.
"""

from __future__ import annotations

from typing import Protocol

from minfer.engine import BatchRequest as ServeRequest
from minfer.engine import (
    DefaultSampling,
    EngineSnapshot,
    Event,
    EventListener,
    Failed,
    PromptLogprobs,
    PromptProgress,
    SampleDelta,
    SampleDone,
    SampleStats,
    Started,
    StepListener,
    StepReport,
)
from minfer.errors import EngineClosedError, QueueFullError
from minfer.sampling import TokenLogprobs
from minfer.text import Tokenizer

__all__ = [
    "DefaultSampling",
    "Engine",
    "EngineClosedError",
    "EngineSnapshot",
    "Event",
    "EventListener",
    "Failed",
    "PromptLogprobs",
    "PromptProgress",
    "QueueFullError",
    "RequestHandle",
    "SampleDelta",
    "SampleDone",
    "SampleStats",
    "ServeRequest",
    "Started",
    "StepListener",
    "StepReport",
    "TokenLogprobs",
]


class RequestHandle(Protocol):
    """A request that was submitted."""

    def cancel(self) -> None:
        """Ends the request soon, wherever it is: queued, in prefill or in decode. Its samples are then done with
        `StopCause.CANCELLED`. May be called from any thread, more than once, and after the end."""
        ...


class Engine(Protocol):
    """An engine that is ready to run. All of it may be used from any thread, and nothing in it blocks for long."""

    @property
    def model_name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def n_ctx(self) -> int:
        """How many positions a sequence may have."""
        ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def default_sampling(self) -> DefaultSampling:
        """How tokens are chosen where a request does not say."""
        ...

    @property
    def max_active(self) -> int:
        """How many sequences are computed together at most; a request with n samples counts n times."""
        ...

    @property
    def max_queued(self) -> int:
        """How many requests may wait."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the engine's thread has ended, if it has: nothing is answered any more."""
        ...

    def submit(self, request: ServeRequest, on_event: EventListener) -> RequestHandle:
        """Takes a request; all of its events come after the call began, some perhaps before it returned.

        Raises:
            ParameterError: a value out of its range, no prompt tokens, more samples than `max_active`.
            ContextError: the prompt and `max_tokens` together are more than `n_ctx`.
            QueueFullError: the queue is full.
            EngineClosedError: the engine is closed, or has failed.
        """
        ...

    def add_step_listener(self, listener: StepListener) -> None:
        """Has every later step reported."""
        ...

    def snapshot(self) -> EngineSnapshot:
        """What is going on now."""
        ...

    def close(self) -> None:
        """Fails what is queued or active with `EngineClosedError`, ends the thread, and gives memory back."""
        ...
