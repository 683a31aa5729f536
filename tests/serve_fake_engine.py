"""An engine without a model: it says what it is told to, step by step, as slowly as a test wants.

It keeps the promises of `minfer.serve.engine_protocol`: one thread, a bounded queue, a bounded batch, pages,
cancellation at the next step. Free-running it never waits; `hold()` makes every later step wait for `allow()`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from minfer.engine import DefaultSampling, StopCause
from minfer.engine.stops import StopMatcher
from minfer.errors import ContextError, ParameterError
from minfer.serve.engine_protocol import (
    EngineClosedError,
    EngineSnapshot,
    Event,
    EventListener,
    Failed,
    PromptLogprobs,
    PromptProgress,
    QueueFullError,
    SampleDelta,
    SampleDone,
    SampleStats,
    ServeRequest,
    Started,
    StepListener,
    StepReport,
    TokenLogprobs,
)
from minfer.text import Tokenizer

PAGE_SIZE = 64
CHUNK = 64
TIMEOUT_S = 20.0

Reply = Callable[[ServeRequest, int], str]


def default_reply(request: ServeRequest, sample: int) -> str:
    """Tells what was asked for, so that tests see that it arrived."""
    return f"Sample {sample} at temperature {request.sampling.temperature:g}: alpha beta gamma, naïve 🙂 end."


@dataclass
class _Sample:
    index: int
    tokens: deque[int]
    matcher: StopMatcher
    decode: Callable[[int], str]
    finish: Callable[[], str]
    n_generated: int = 0
    pending: list[int] = field(default_factory=list)
    is_done: bool = False


@dataclass
class _Job:
    request: ServeRequest
    on_event: EventListener
    submitted_s: float = field(default_factory=time.perf_counter)
    started_s: float = 0.0
    first_s: float | None = None
    is_cancelled: bool = False
    is_over: bool = False
    n_cached: int = 0
    n_read: int = 0
    samples: list[_Sample] = field(default_factory=list)

    @property
    def n_open(self) -> int:
        return self.request.n_samples if not self.samples else sum(not sample.is_done for sample in self.samples)

    @property
    def n_pages(self) -> int:
        """The prompt's pages, which samples share, and those of each sample."""
        open_ones = [sample for sample in self.samples if not sample.is_done]
        return -(-self.n_read // PAGE_SIZE) + sum(1 + sample.n_generated // PAGE_SIZE for sample in open_ones)


class FakeEngine:
    """See the module."""

    model_name = "fake"
    default_sampling = DefaultSampling()

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        n_ctx: int = 4096,
        max_active: int = 4,
        max_queued: int = 64,
        reply: Reply = default_reply,
    ) -> None:
        self.tokenizer = tokenizer
        self.n_ctx = n_ctx
        self.n_vocab = tokenizer.n_vocab
        self.max_active = max_active
        self.max_queued = max_queued
        self.reply = reply
        self.failure: BaseException | None = None
        self.seen: list[ServeRequest] = []
        self._n_pages = 4 * max_active * -(-n_ctx // PAGE_SIZE)
        self._changed = threading.Condition()
        self._queued: deque[_Job] = deque()
        self._active: list[_Job] = []
        self._retained: list[tuple[int, ...]] = []
        self._listeners: list[StepListener] = []
        self._permits: int | None = None
        self._crash: BaseException | None = None
        self._is_closed = False
        self._counts = {"prefilled": 0, "reused": 0, "generated": 0}
        self._thread = threading.Thread(target=self._run, name="fake-engine", daemon=True)
        self._thread.start()

    # What tests do with it.

    def hold(self) -> None:
        """No further step without `allow`."""
        with self._changed:
            self._permits = 0

    def allow(self, n_steps: int | None = None) -> None:
        """So many more steps, or as many as it wants."""
        with self._changed:
            self._permits = None if n_steps is None else (self._permits or 0) + n_steps
            self._changed.notify_all()

    def forget(self) -> None:
        """Empties the cache of earlier prompts."""
        with self._changed:
            self._retained = []

    def crash(self, error: BaseException) -> None:
        """Lets the thread meet an error at its next step."""
        with self._changed:
            self._crash = error
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[EngineSnapshot], bool]) -> EngineSnapshot:
        """Waits until the engine's state is as wanted."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.snapshot()), TIMEOUT_S):
                raise AssertionError(f"the engine did not get there: {self.snapshot()}")
            return self.snapshot()

    # The protocol.

    def submit(self, request: ServeRequest, on_event: EventListener) -> _Handle:
        if not request.prompt_tokens:
            raise ParameterError("there are no tokens to compute: the prompt is empty")
        if request.n_samples > self.max_active:
            raise ParameterError(f"{request.n_samples} samples; at most {self.max_active} are computed together")
        n_positions = len(request.prompt_tokens) + request.max_tokens
        if n_positions > self.n_ctx:
            raise ContextError("too long", n_positions=n_positions, n_ctx=self.n_ctx)
        job = _Job(request, on_event)
        with self._changed:
            if self._is_closed or self.failure is not None:
                raise EngineClosedError("the engine is closed")
            if len(self._queued) >= self.max_queued:
                raise QueueFullError(len(self._queued), 2.0)
            self.seen.append(request)
            self._queued.append(job)
            self._changed.notify_all()
        return _Handle(self, job)

    def add_step_listener(self, listener: StepListener) -> None:
        self._listeners.append(listener)

    def snapshot(self) -> EngineSnapshot:
        with self._changed:
            n_cached = sum(-(-len(tokens) // PAGE_SIZE) for tokens in self._retained)
            return EngineSnapshot(
                n_queued=len(self._queued),
                n_active=len(self._active),
                n_pages=self._n_pages,
                n_free_pages=self._n_pages - n_cached - sum(job.n_pages for job in self._active),
                n_cached_pages=n_cached,
                n_prefilled_tokens=self._counts["prefilled"],
                n_reused_tokens=self._counts["reused"],
                n_generated_tokens=self._counts["generated"],
            )

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        error: Exception = EngineClosedError("the engine is closed")
        try:
            while self._wait():
                start_s = time.perf_counter()
                with self._changed:
                    self._drop_cancelled()
                    self._changed.notify_all()
                    if self._permits == 0:
                        continue  # it was only woken to drop some
                    if self._permits is not None:
                        self._permits -= 1
                    self._admit()
                    active = list(self._active)
                n_prefill = sum(self._prefill(job) for job in active if job.n_read < len(job.request.prompt_tokens))
                n_decode = sum(self._decode(job) for job in active if job.samples)
                with self._changed:
                    self._active = [job for job in self._active if not job.is_over]
                    self._changed.notify_all()
                report = StepReport(time.perf_counter() - start_s, len(active), n_prefill, n_decode)
                for listener in self._listeners if active else ():
                    listener(report)
        except Exception as failure:  # noqa: BLE001  # it is told through the protocol
            error = self.failure = failure
        with self._changed:
            jobs = [*self._active, *self._queued]
            self._active, self._is_closed = [], True
            self._queued.clear()
            self._changed.notify_all()
        for job in jobs:
            job.on_event(Failed(error))

    def _wait(self) -> bool:
        """Waits for something to do, and for permission; False at the end."""

        def ready() -> bool:
            has_work = bool(self._queued or self._active)
            cancelled = any(job.is_cancelled for job in (*self._queued, *self._active))
            return self._is_closed or self._crash is not None or cancelled or (has_work and self._permits != 0)

        with self._changed:
            self._changed.wait_for(ready)
            if self._crash is not None:
                raise self._crash
            return not self._is_closed

    def _drop_cancelled(self) -> None:
        for job in [job for job in (*self._queued, *self._active) if job.is_cancelled and not job.is_over]:
            job.is_over = True
            for index in range(job.request.n_samples):
                if not job.samples or not job.samples[index].is_done:
                    n_generated = job.samples[index].n_generated if job.samples else 0
                    self._end(job, index, StopCause.CANCELLED, n_generated)
        self._queued = deque(job for job in self._queued if not job.is_over)
        self._active = [job for job in self._active if not job.is_over]

    def _admit(self) -> None:
        while self._queued:
            n_running = sum(job.n_open for job in self._active)
            if n_running + self._queued[0].request.n_samples > self.max_active:
                return
            job = self._queued.popleft()
            tokens = job.request.prompt_tokens
            if job.request.reuse_prefix and job.request.prompt_logprobs is None:
                job.n_cached = max((_common(tokens[:-1], kept) for kept in self._retained), default=0)
            job.n_read = job.n_cached
            job.started_s = time.perf_counter()
            self._counts["reused"] += job.n_cached
            self._active.append(job)
            job.on_event(Started(job.n_cached))

    def _prefill(self, job: _Job) -> int:
        request = job.request
        n_total = len(request.prompt_tokens)
        n_new = min(CHUNK, n_total - job.n_read)
        first = max(1, job.n_read)
        job.n_read += n_new
        self._counts["prefilled"] += n_new
        job.on_event(PromptProgress(job.n_read, n_total))
        if request.prompt_logprobs is not None:
            prompt, n_top = request.prompt_tokens, request.prompt_logprobs
            entries = [self.logprobs(prompt[i], i, n_top) for i in range(first, job.n_read)]
            job.on_event(PromptLogprobs(tuple(entries)))
        if job.n_read == n_total:
            job.samples = [self._sample(job, index) for index in range(request.n_samples)]
            if request.max_tokens == 0:
                for sample in job.samples:
                    self._end(job, sample.index, StopCause.MAX_TOKENS, 0)
                job.samples, job.is_over = [], True
        return n_new

    def _sample(self, job: _Job, index: int) -> _Sample:
        request = job.request
        tokens = self.tokenizer.tokenize(self.reply(request, index), special=True)
        decoder = self.tokenizer.stream_decoder(special=False, at_start=not request.continues_text)
        return _Sample(index, deque(tokens), StopMatcher(request.stop), decoder.push, decoder.finish)

    def _decode(self, job: _Job) -> int:
        n_new = 0
        for sample in job.samples:
            if not sample.is_done:
                n_new += self._decode_one(job, sample)
        if job.samples and all(sample.is_done for sample in job.samples) and not job.is_over:
            job.is_over = True
            with self._changed:
                self._retained = [*self._retained, job.request.prompt_tokens][-8:]
        return n_new

    def _decode_one(self, job: _Job, sample: _Sample) -> int:
        if not sample.tokens:
            if not job.request.ignore_eos:
                text = sample.matcher.push(sample.finish()) + sample.matcher.finish()
                return self._flush(job, sample, text, StopCause.END_OF_GENERATION)
            sample.tokens += self.tokenizer.tokenize(" and on")
        job.first_s = job.first_s or time.perf_counter()
        token = sample.tokens.popleft()
        sample.n_generated += 1
        sample.pending.append(token)
        self._counts["generated"] += 1
        text = sample.matcher.push(sample.decode(token))
        cause = None
        if sample.matcher.matched is not None:
            cause = StopCause.STOP_STRING
        elif sample.n_generated >= job.request.max_tokens:
            cause = StopCause.MAX_TOKENS
            text += sample.matcher.push(sample.finish()) + sample.matcher.finish()
        if text or cause is not None:
            self._flush(job, sample, text, cause)
        return 1

    def _flush(self, job: _Job, sample: _Sample, text: str, cause: StopCause | None) -> int:
        n_top = job.request.logprobs
        first = sample.n_generated - len(sample.pending)
        entries = [] if n_top is None else [self.logprobs(t, first + i, n_top) for i, t in enumerate(sample.pending)]
        if text or sample.pending:
            job.on_event(SampleDelta(sample.index, text, tuple(sample.pending), tuple(entries)))
        sample.pending = []
        if cause is not None:
            sample.is_done = True
            self._end(job, sample.index, cause, sample.n_generated)
        return 0

    def _end(self, job: _Job, index: int, cause: StopCause, n_generated: int) -> None:
        now_s = time.perf_counter()
        started_s = job.started_s or now_s
        first_s = job.first_s or now_s
        stats = SampleStats(
            n_prompt_tokens=len(job.request.prompt_tokens),
            n_cached_tokens=job.n_cached,
            n_generated_tokens=n_generated,
            queue_s=started_s - job.submitted_s,
            prefill_s=first_s - started_s,
            decode_s=now_s - first_s,
            seed=job.request.sampling.seed or 0,
        )
        event: Event = SampleDone(index, cause, stats)
        job.on_event(event)

    def logprobs(self, token: int, index: int, n_top: int) -> TokenLogprobs:
        """Made-up numbers that depend on the place: the token is the likeliest, the ids after it follow."""
        likeliest = -0.125 * (1 + index % 8)
        top = tuple(((token + i) % self.n_vocab, likeliest - i) for i in range(n_top))
        return TokenLogprobs(token, likeliest, top)


class _Handle:
    def __init__(self, engine: FakeEngine, job: _Job) -> None:
        self._engine = engine
        self._job = job

    def cancel(self) -> None:
        with self._engine._changed:
            self._job.is_cancelled = not self._job.is_over
            self._engine._changed.notify_all()


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n
