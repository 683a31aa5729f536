"""Requests to a batch engine, with their events collected."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minfer.engine import (
    BatchEngine,
    BatchHandle,
    BatchRequest,
    EngineSnapshot,
    Event,
    Failed,
    PromptLogprobs,
    SampleDelta,
    SampleDone,
)
from minfer.sampling import SamplingParams, TokenLogprobs

TIMEOUT_S = 60.0


def request(prompt: list[int], *, max_tokens: int = 8, seed: int | None = 5, **others: Any) -> BatchRequest:
    """A request that goes on until `max_tokens`."""
    sampling = others.pop("sampling", SamplingParams(seed=seed, top_k=0, top_p=1.0, min_p=0.0))
    return BatchRequest(
        prompt_tokens=tuple(prompt), sampling=sampling, max_tokens=max_tokens, ignore_eos=True, **others
    )


@dataclass
class Collected:
    """The events of one request. `wait` ends when the last one has come."""

    request: BatchRequest
    handle: BatchHandle | None = None
    events: list[Event] = field(default_factory=list)
    hook: Callable[[Event], None] = lambda event: None
    """called with each event, in the engine's thread"""
    _over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.hook(event)
        if isinstance(event, Failed) or len(self.of(SampleDone)) == self.request.n_samples:
            self._over.set()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait(self) -> Collected:
        assert self._over.wait(TIMEOUT_S), f"the request is not over; its events so far: {self.events}"
        return self

    def tokens(self, sample: int = 0) -> list[int]:
        return [token for delta in self._deltas(sample) for token in delta.tokens]

    def text(self, sample: int = 0) -> str:
        return "".join(delta.text for delta in self._deltas(sample))

    def logprobs(self, sample: int = 0) -> list[TokenLogprobs]:
        return [each for delta in self._deltas(sample) for each in delta.logprobs]

    def prompt_logprobs(self) -> list[TokenLogprobs]:
        return [entry for event in self.of(PromptLogprobs) for entry in event.entries]

    def error(self) -> Exception:
        (failed,) = self.of(Failed)
        error: Exception = failed.error
        return error

    def _deltas(self, sample: int) -> list[SampleDelta]:
        return [delta for delta in self.of(SampleDelta) if delta.sample == sample]


def submit(engine: BatchEngine, wanted: BatchRequest, hook: Callable[[Event], None] = lambda event: None) -> Collected:
    collected = Collected(wanted, hook=hook)
    collected.handle = engine.submit(wanted, collected)
    return collected


def idle(engine: BatchEngine) -> EngineSnapshot:
    """The snapshot once nothing is queued or active any more."""
    waited = threading.Event()
    for _ in range(int(TIMEOUT_S * 100)):
        now = engine.snapshot()
        if now.n_queued == now.n_active == 0:
            return now
        waited.wait(0.01)
    raise AssertionError(f"the engine is not idle: {engine.snapshot()}")
