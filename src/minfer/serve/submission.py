"""From the engine's thread to the event loop: the events of a request, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from minfer.serve.engine_protocol import (
    Engine,
    Event,
    Failed,
    RequestHandle,
    SampleDelta,
    SampleDone,
    ServeRequest,
    Started,
)
from minfer.serve.record import RequestRecord


class Submission:
    """The prompts of one HTTP request at the engine. Leaving it as a context cancels what is not over yet.

    Iterated, it gives `(index of the prompt, event)` until all prompts are done, and None after each `patience_s`
    without news. An event `Failed` is raised as its error.

    The event loop is woken no more often than there is something to do: it shares cores, and Python's lock, with the
    threads that compute.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[ServeRequest], record: RequestRecord, patience_s: float
    ) -> None:
        """Submits all of the prompts, or none.

        Raises:
            MinferError: as `Engine.submit`.
        """
        self._loop = asyncio.get_running_loop()
        self._box: deque[tuple[int, Event]] = deque()
        """events on their way; the engine's thread appends, the event loop takes"""
        self._news = asyncio.Event()
        self._is_woken = False
        self._wants_ends_only = False
        self._record = record
        self._patience_s = patience_s
        record.n_prompt_tokens = sum(len(request.prompt_tokens) for request in requests)
        self._n_open = [request.n_samples for request in requests]
        self._handles: list[RequestHandle] = []
        self.submitted_s = time.perf_counter()
        try:
            for index, request in enumerate(requests):
                self._handles.append(engine.submit(request, partial(self._tell, index)))
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancels what is not over yet."""
        for handle in self._handles:
            handle.cancel()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Event] | None]:
        while any(self._n_open):
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._news.wait()
            except TimeoutError:
                yield None
                continue
            self._news.clear()
            while self._box:
                prompt, event = self._box.popleft()
                self._note(prompt, event)
                yield prompt, event
                if self._box:
                    await asyncio.sleep(0)  # what has piled up keeps no other request waiting

    async def all_events(self) -> list[tuple[int, Event]]:
        """All events, once all prompts are done."""
        self._wants_ends_only = True
        return [item async for item in self if item is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _tell(self, prompt: int, event: Event) -> None:
        """Runs in the engine's thread."""
        record = self._record
        if isinstance(event, Started):
            record.queue_s = max(record.queue_s or 0.0, time.perf_counter() - self.submitted_s)
        elif isinstance(event, SampleDelta) and record.first_token_s is None:
            record.first_token_s = record.age_s
        self._box.append((prompt, event))
        if self._is_woken or (self._wants_ends_only and not isinstance(event, (SampleDone, Failed))):
            return
        self._is_woken = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_woken = False
        self._news.set()

    def _note(self, prompt: int, event: Event) -> None:
        record = self._record
        match event:
            case Failed():
                self._n_open[prompt] = 0
                raise event.error
            case Started():
                record.n_cached_tokens += event.n_cached_tokens
            case SampleDelta():
                record.n_generated_tokens += len(event.tokens)
            case SampleDone(stats=stats):
                self._n_open[prompt] -= 1
                record.finish_reasons.append(event.cause.value)
                if stats.n_generated_tokens > 1:
                    record.per_token_s.append(stats.decode_s / (stats.n_generated_tokens - 1))
