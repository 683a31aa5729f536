"""The batch engine: many requests share the steps of one model. On a CPU the weights stream once for all of them.

Requests join and leave between steps (continuous batching: Yu et al., Orca, 2022). A step takes the next token of every
sample that is being answered, and beside them as many prompt tokens as keep it short (`batch_pace.py`), the oldest
prompt first. A request is admitted in the order in which it came, when its samples fit beside the others and the cache
has pages for all that it may become; what it needs later is then certain to be there.

A request's tokens are the same bits alone or in any batch.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from minfer.engine.answer import Answer, GenerationRequest
from minfer.engine.batch_inbox import Inbox, start_worker
from minfer.engine.batch_job import BatchJob
from minfer.engine.batch_pace import PrefillPace
from minfer.engine.batch_types import BatchRequest, EngineSnapshot, EventListener, StepListener, StepReport
from minfer.engine.default_sampling import DefaultSampling
from minfer.engine.page_pool import pages_for
from minfer.engine.runtime import Runtime, check_tokens
from minfer.engine.samplers import Samplers
from minfer.engine.session import Extension, extend_together
from minfer.engine.unpicklable import Unpicklable
from minfer.errors import ContextError, EngineClosedError, MinferError, ParameterError, QueueFullError
from minfer.text import Tokenizer

_N_SEEDS = 2**64
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
_NEWS = 0.2
"""Weight of the latest request in the running mean of their times."""


class BatchHandle:
    """A request that was submitted."""

    def __init__(self, job: BatchJob, wake: Callable[[], None]) -> None:
        self._job = job
        self._wake = wake

    def cancel(self) -> None:
        """Ends the request before the next step, wherever it is. From any thread; more than once is fine."""
        self._job.cancelled = True
        self._wake()


class BatchEngine(Unpicklable):
    """Computes requests together, in a thread of its own. All methods may be called from any thread, and none waits for
    a step."""

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        samplers: Samplers,
        *,
        model_name: str,
        max_active: int,
        max_queued: int,
    ) -> None:
        """
        Args:
            max_active: how many sequences are computed together at most; a request with n samples counts n times.
            max_queued: how many requests may wait.

        Raises:
            ParameterError: `max_active` or `max_queued` is out of its range.
        """
        if not 1 <= max_active <= runtime.max_outputs_per_step:
            raise ParameterError(f"max_active is {max_active}; it must be from 1 to {runtime.max_outputs_per_step}")
        if max_queued < 0:
            raise ParameterError(f"max_queued is {max_queued}; it must be at least 0")
        self.model_name = model_name
        self.tokenizer = tokenizer
        self.max_active = max_active
        self.max_queued = max_queued
        self._runtime = runtime
        self._samplers = samplers
        self._pace = PrefillPace()
        self._listeners: list[StepListener] = []
        self._inbox = Inbox()
        self._changed = self._inbox.changed
        """guards the queue and what is told of the engine"""
        self._active: list[BatchJob] = []
        self._failure: BaseException | None = None
        self._usage = runtime.cache_usage()
        self._n_prefilled = self._n_reused = self._n_generated = 0
        self._job_s: float | None = None
        """running mean of a request's time from its submission to its end"""
        self._thread = start_worker(self, self._inbox)

    @property
    def default_sampling(self) -> DefaultSampling:
        """How tokens are chosen where a client does not say; a request has it resolved already."""
        return self._samplers.defaults

    @property
    def n_ctx(self) -> int:
        return self._runtime.n_ctx

    @property
    def n_vocab(self) -> int:
        return self._runtime.config.n_vocab

    @property
    def failure(self) -> BaseException | None:
        """Why the engine's thread has ended, if it has: nothing is answered any more."""
        return self._failure

    def submit(self, request: BatchRequest, on_event: EventListener) -> BatchHandle:
        """Takes a request. `on_event` is called by the engine's thread, perhaps before this returns.

        Raises:
            ParameterError: a value out of its range, no prompt tokens, more samples than `max_active`.
            ContextError: the prompt and `max_tokens` together are more than `n_ctx`, or than the cache has pages for.
            QueueFullError: the queue is full.
            EngineClosedError: the engine is closed, or has failed.
        """
        n_pages = self._check(request)
        job = BatchJob(request, self._answers(request), on_event, n_pages)
        with self._changed:
            if self._inbox.is_closing or self._failure is not None:
                raise EngineClosedError("the engine is closed")
            # One that can be admitted at once waits for the next step only.
            n_free = max(self.max_active - sum(each.n_samples for each in self._requests()), 0)
            n_waiting = len(self._inbox.queue) - n_free
            if n_waiting >= self.max_queued:
                raise QueueFullError(len(self._inbox.queue), self._retry_after_s())
            self._inbox.queue.append(job)
            self._inbox.call(self)
        return BatchHandle(job, self._wake)

    def add_step_listener(self, listener: StepListener) -> None:
        """Has every later step reported."""
        with self._changed:
            self._listeners = [*self._listeners, listener]

    def snapshot(self) -> EngineSnapshot:
        """What is going on now; of the cache, what was so after the last step."""
        with self._changed:
            usage = self._usage
            return EngineSnapshot(
                n_queued=len(self._inbox.queue),
                n_active=len(self._active),
                n_pages=usage.n_pages,
                n_free_pages=usage.n_pages - usage.n_used_pages,
                n_cached_pages=usage.n_kept_pages,
                n_prefilled_tokens=self._n_prefilled,
                n_reused_tokens=self._n_reused,
                n_generated_tokens=self._n_generated,
            )

    def close(self) -> None:
        """Fails what is queued or active with EngineClosedError, and ends the thread. Waits for the step that runs."""
        self._inbox.close(self)
        if self._thread is not threading.current_thread():
            self._thread.join()

    # What callers' threads do.

    def _check(self, request: BatchRequest) -> int:
        """Refuses what can't be answered; the pages that the request may come to need."""
        n_prompt, n_samples = len(request.prompt_tokens), request.n_samples
        if n_prompt == 0:
            raise ParameterError("there are no tokens to compute: the prompt is empty")
        check_tokens(request.prompt_tokens, self.n_vocab)
        if not 1 <= n_samples <= self.max_active:
            raise ParameterError(f"n_samples is {n_samples}; it must be from 1 to {self.max_active}")
        if request.max_tokens < 0 or (request.max_tokens == 0 and request.prompt_logprobs is None):
            raise ParameterError(f"max_tokens must be at least 1, not {request.max_tokens}")
        for name, n_top in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
            if n_top is not None and not 0 <= n_top <= self.n_vocab:
                raise ParameterError(f"{name} is {n_top}; it must be from 0 to {self.n_vocab}")
        n_positions, n_ctx = n_prompt + request.max_tokens, self.n_ctx
        if n_positions > n_ctx:
            raise ContextError(
                f"the prompt's {n_prompt} tokens and max_tokens {request.max_tokens} are {n_positions} together, "
                f"and the context has {n_ctx}",
                n_positions=n_positions,
                n_ctx=n_ctx,
            )
        n_pages, n_all = n_samples * pages_for(n_positions), self._usage.n_pages
        if n_pages > n_all:
            raise ContextError(
                f"{n_samples} samples of up to {n_positions} positions need {n_pages} pages, and the cache has {n_all}",
                n_positions=n_samples * n_positions,
                n_ctx=n_ctx,
            )
        return n_pages

    def _answers(self, request: BatchRequest) -> list[Answer]:
        if request.max_tokens == 0:
            return []
        seed = request.sampling.seed
        first = secrets.randbits(64) if seed is None else seed
        samplings = (replace(request.sampling, seed=(first + i) % _N_SEEDS) for i in range(request.n_samples))
        return [
            self._samplers.answer(
                GenerationRequest(
                    prompt_tokens=request.prompt_tokens,
                    sampling=sampling,
                    max_tokens=request.max_tokens,
                    stop=request.stop,
                    ignore_eos=request.ignore_eos,
                    continues_text=request.continues_text,
                    logprobs=request.logprobs,
                )
            )
            for sampling in samplings
        ]

    def _requests(self) -> list[BatchRequest]:
        return [job.request for job in self._active]

    def _retry_after_s(self) -> float:
        expected = (self._job_s or 0.0) * (len(self._inbox.queue) / self.max_active)
        return min(max(expected, _SHORTEST_RETRY_S), _LONGEST_RETRY_S)

    def _wake(self) -> None:
        self._inbox.call(self)

    # What the engine's thread does.

    def work(self) -> None:
        """Takes turns until there is nothing to do, or the engine is closed. Called by its thread."""
        try:
            while self._has_work():
                self._turn()
        except BaseException as failure:  # noqa: BLE001  # kept in `failure`: the thread has no caller
            self._failure = failure
            self._inbox.close()
        if self._inbox.is_closing:
            self._end()

    def _end(self) -> None:
        """Fails what is not over."""
        closed = EngineClosedError("the engine was closed before the request was over")
        error = self._failure if isinstance(self._failure, Exception) else closed
        with self._changed:
            jobs = [*self._active, *self._inbox.queue]
        for job in jobs:
            job.fail(error)
        self._remove(jobs)

    def _has_work(self) -> bool:
        with self._changed:
            return bool(self._inbox.queue or self._active) and not self._inbox.is_closing

    def _turn(self) -> None:
        """Takes leave of what is cancelled, admits what waits, and takes a step."""
        self._drop_cancelled()
        self._admit()
        scoring = [job for job in self._active if job.is_prefilling and job.scores_prompt]
        if any(job.n_decoding or not job.scores_prompt for job in self._active):
            self._take_step()
        if scoring:
            self._score(scoring[0])
        self._leave()

    def _drop_cancelled(self) -> None:
        with self._changed:
            dropped = [job for job in (*self._active, *self._inbox.queue) if job.cancelled]
        for job in dropped:
            job.cancel()
        if dropped:
            self._remove(dropped)

    def _admit(self) -> None:
        """Takes requests from the queue, the first first, as long as the next one fits."""
        while True:
            with self._changed:
                n_samples = sum(request.n_samples for request in self._requests())
                n_pages = sum(job.n_pages for job in self._active)
                if not self._inbox.queue:
                    return
                job = self._inbox.queue[0]
                if n_samples + job.request.n_samples > self.max_active or n_pages + job.n_pages > self._usage.n_pages:
                    return
                self._inbox.queue.popleft()
                self._active = [*self._active, job]
            job.start(self._runtime)
            self._count(n_reused=job.n_cached_tokens)

    def _take_step(self) -> None:
        """The next token of every sample, and some of the prompts."""
        decodes = [(job, index, part) for job in self._active for index, part in job.decode_parts()]
        prompts = self._prompt_parts(len(decodes))
        extensions = [*(part for _, _, part in decodes), *(part for _, part in prompts)]
        if not extensions:
            return
        start_s = time.perf_counter()
        try:
            logits = extend_together(extensions)
        except ContextError as error:
            # Somebody else uses the same cache. The last one to come gives way.
            self._fail(self._active[-1], error)
            return
        n_prefill = sum(len(part.tokens) for _, part in prompts)
        self._report(start_s, len(extensions), n_prefill, len(decodes))
        n_drawn = len(decodes)
        for (job, index, _), row in zip(decodes, logits, strict=False):
            assert row is not None
            try:
                job.push(index, row)
            except MinferError as error:
                self._fail(job, error)
        for (job, _), row in zip(prompts, logits[len(decodes) :], strict=True):
            try:
                n_drawn += job.prompt_advanced(row)
            except MinferError as error:
                self._fail(job, error)
        self._count(n_prefilled=n_prefill, n_generated=n_drawn)

    def _prompt_parts(self, n_decoding: int) -> list[tuple[BatchJob, Extension]]:
        """Prompt tokens for a step, the oldest prompt's first. A prompt's end takes a row of logits of the step."""
        room = self._runtime.max_tokens_per_step - n_decoding
        n_left = self._pace.budget(n_decoding, room)
        parts = []
        for job in self._active:
            if n_left > 0 and job.is_prefilling and not job.scores_prompt:
                part = job.prompt_part(n_left)
                parts.append((job, part))
                n_left -= len(part.tokens)
        return parts

    def _score(self, job: BatchJob) -> None:
        """A step over the prompt of one request that wants logprobs of it."""
        n_decoding = sum(each.n_decoding for each in self._active)
        limit = min(self._runtime.max_outputs_per_step, job.n_prompt_left)
        n_tokens = self._pace.budget(n_decoding, limit)
        start_s = time.perf_counter()
        try:
            n_drawn = job.score(n_tokens, self._samplers.ops)
        except MinferError as error:
            self._fail(job, error)
            return
        self._report(start_s, 1, n_tokens, 0)
        self._count(n_prefilled=n_tokens, n_generated=n_drawn)

    def _leave(self) -> None:
        over = [job for job in self._active if job.is_over]
        self._remove(over)
        with self._changed:
            for job in over:
                self._job_s = job.age_s if self._job_s is None else self._job_s + _NEWS * (job.age_s - self._job_s)

    def _fail(self, job: BatchJob, error: Exception) -> None:
        job.fail(error)
        self._remove([job])

    def _remove(self, jobs: Sequence[BatchJob]) -> None:
        """Takes leave of jobs that have given their pages back. Who looks sees both, or neither."""
        usage = self._runtime.cache_usage()
        with self._changed:
            self._usage = usage
            self._active = [job for job in self._active if job not in jobs]
            self._inbox.queue = deque(job for job in self._inbox.queue if job not in jobs)

    def _report(self, start_s: float, n_sequences: int, n_prefill: int, n_decode: int) -> None:
        report = StepReport(time.perf_counter() - start_s, n_sequences, n_prefill, n_decode)
        self._pace.note(report)
        for listener in self._listeners:
            listener(report)

    def _count(self, *, n_prefilled: int = 0, n_reused: int = 0, n_generated: int = 0) -> None:
        with self._changed:
            self._n_prefilled += n_prefilled
            self._n_reused += n_reused
            self._n_generated += n_generated
