"""The batch engine: the same bits alone or in any batch; who comes first is answered first; nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minfer
from batch_runner import TIMEOUT_S, idle, request, submit
from minfer.engine import (
    BatchEngine,
    Event,
    PromptProgress,
    SampleDelta,
    SampleDone,
    Started,
    StepReport,
    StopCause,
)
from minfer.errors import ContextError, EngineClosedError, ModelError, ParameterError, QueueFullError
from minfer.sampling import SamplingParams
from tiny_load import tiny_path

PLAIN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module", params=["reference", "cpu"])
def batch_model(request: pytest.FixtureRequest, tiny_dir: Path) -> Iterator[minfer.Model]:
    with minfer.load(tiny_path(tiny_dir), backend=request.param, prefix_cache_bytes=0) as model:
        yield model


@contextmanager
def engine_of(model: minfer.Model, **limits: int) -> Iterator[BatchEngine]:
    engine = model.batch_engine("tiny", **limits)
    try:
        yield engine
    finally:
        engine.close()


def prompts(n: int) -> list[list[int]]:
    """Prompts of very different lengths."""
    rng = np.random.default_rng(3)
    return [rng.integers(3, 300, length).tolist() for length in (1, 5, 63, 64, 65, 130, 17, 2, 90, 33, 128, 7, 70)[:n]]


def hold(engine: BatchEngine) -> Callable[[], None]:
    """Stops the engine's thread before its next event of a long request, so that others queue up; returns what lets it
    go on. The request itself is cancelled then."""
    reached, go_on = threading.Event(), threading.Event()

    def pause(event: Event) -> None:
        if isinstance(event, SampleDelta) and not reached.is_set():
            reached.set()
            assert go_on.wait(TIMEOUT_S)

    held = submit(engine, request([7], max_tokens=100), pause)
    assert reached.wait(TIMEOUT_S)

    def release() -> None:
        assert held.handle is not None
        held.handle.cancel()
        go_on.set()
        held.wait()

    return release


def test_the_same_bits_alone_and_in_any_batch(batch_model: minfer.Model) -> None:
    wanted = [request(p, seed=i, max_tokens=6 + i % 5, logprobs=3) for i, p in enumerate(prompts(13))]
    with engine_of(batch_model, max_active=13) as engine:
        release = hold(engine)
        together = [submit(engine, each) for each in wanted]
        release()
        for each in together:
            each.wait()
    for each, got in zip(wanted, together, strict=True):
        alone = batch_model.generate(
            list(each.prompt_tokens), seed=each.sampling.seed, max_tokens=each.max_tokens, logprobs=3, **PLAIN
        )
        assert tuple(got.tokens()) == alone.tokens
        assert got.text() == alone.text
        assert tuple(got.logprobs()) == alone.logprobs  # floats of the raw logits: the same bits
        assert got.of(SampleDone)[0].cause is StopCause.MAX_TOKENS


def test_requests_share_steps(batch_model: minfer.Model) -> None:
    reports: list[StepReport] = []
    with engine_of(batch_model, max_active=9) as engine:
        engine.add_step_listener(reports.append)
        release = hold(engine)
        together = [submit(engine, request(p)) for p in prompts(8)]
        release()
        for each in together:
            each.wait()
    assert max(report.n_decode_tokens for report in reports) == 8
    assert sum(report.n_prefill_tokens for report in reports) == 1 + sum(map(len, prompts(8)))


def test_events_come_in_order(batch_model: minfer.Model) -> None:
    with engine_of(batch_model) as engine:
        got = submit(engine, request(prompts(6)[5], max_tokens=3)).wait()
    kinds = [type(event) for event in got.events]
    assert kinds[0] is Started
    assert kinds[1] is PromptProgress
    assert kinds[-1] is SampleDone
    assert got.of(PromptProgress)[-1] == PromptProgress(130, 130)
    stats = got.of(SampleDone)[0].stats
    assert (stats.n_prompt_tokens, stats.n_cached_tokens, stats.n_generated_tokens, stats.seed) == (130, 0, 3, 5)
    assert min(stats.queue_s, stats.prefill_s, stats.decode_s) >= 0


def test_samples_share_their_prompt(batch_model: minfer.Model) -> None:
    prompt = prompts(6)[5]
    want = batch_model.samples(prompt, 3, seed=9, max_tokens=7, **PLAIN)
    with engine_of(batch_model) as engine:
        got = submit(engine, request(prompt, seed=9, max_tokens=7, n_samples=3)).wait()
        now = idle(engine)
    assert [tuple(got.tokens(i)) for i in range(3)] == [each.tokens for each in want]
    assert len({tuple(got.tokens(i)) for i in range(3)}) == 3
    assert now.n_prefilled_tokens == 130
    assert now.n_generated_tokens == 21
    assert now.n_free_pages == now.n_pages


def test_logprobs_of_a_prompt(batch_model: minfer.Model) -> None:
    prompt = prompts(6)[5]
    logits = batch_model.logits(prompt, all=True).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    with engine_of(batch_model) as engine:
        release = hold(engine)
        scored = submit(engine, request(prompt, max_tokens=0, prompt_logprobs=2))
        beside = submit(engine, request(prompt, max_tokens=4, prompt_logprobs=0))
        release()
        entries = scored.wait().prompt_logprobs()
        also = beside.wait().prompt_logprobs()
    assert [entry.token for entry in entries] == prompt[1:]
    for i, entry in enumerate(entries):
        # exp and log of float64, on logits that are exact here: errors of a few units of float64 roundoff
        assert entry.logprob == pytest.approx(logprobs[i, prompt[i + 1]], abs=1e-12)
        assert entry.top[0][0] == logits[i].argmax()
        assert len(entry.top) == 2
    assert [entry.logprob for entry in also] == [entry.logprob for entry in entries]
    assert scored.tokens() == []
    assert scored.of(SampleDone)[0].cause is StopCause.MAX_TOKENS
    assert tuple(beside.tokens()) == batch_model.generate(prompt, seed=5, max_tokens=4, **PLAIN).tokens


def test_prefixes_are_used_again(tiny_dir: Path) -> None:
    prompt = prompts(6)[5]
    with minfer.load(tiny_path(tiny_dir)) as model, engine_of(model) as engine:
        cold = submit(engine, request(prompt)).wait()
        warm = submit(engine, request(prompt)).wait()
        refused = submit(engine, request(prompt, reuse_prefix=False)).wait()
        now = idle(engine)
    assert [each.of(Started)[0].n_cached_tokens for each in (cold, warm, refused)] == [0, 129, 0]
    assert cold.tokens() == warm.tokens() == refused.tokens()
    assert now.n_reused_tokens == 129
    assert now.n_cached_pages > 0
    assert now.n_free_pages + now.n_cached_pages == now.n_pages


def test_who_comes_first_starts_first(batch_model: minfer.Model) -> None:
    order: list[int] = []
    with engine_of(batch_model, max_active=2) as engine:
        release = hold(engine)

        def note(index: int) -> Callable[[Event], None]:
            return lambda event: order.append(index) if isinstance(event, Started) else None

        waiting = [submit(engine, request([index + 3], n_samples=1 + index % 2), note(index)) for index in range(6)]
        assert engine.snapshot().n_queued == 6
        release()
        for each in waiting:
            each.wait()
    assert order == list(range(6))


def test_a_request_waits_until_there_are_pages_for_all_that_it_may_become(tiny_dir: Path) -> None:
    most = [0]
    with minfer.load(tiny_path(tiny_dir), n_ctx=128, prefix_cache_bytes=0) as model:
        n_pages = model._runtime.pool.n_pages
        with engine_of(model, max_active=16) as engine:
            engine.add_step_listener(lambda report: most.append(report.n_sequences))
            release = hold(engine)
            # Each may need 2 pages.
            waiting = [submit(engine, request([index + 3], max_tokens=100)) for index in range(n_pages)]
            release()
            for each in waiting:
                assert len(each.wait().tokens()) == 100
            now = idle(engine)
    assert max(most) == n_pages // 2
    assert now.n_free_pages == now.n_pages


def test_a_cancelled_request_frees_its_pages_wherever_it_is(batch_model: minfer.Model) -> None:
    with engine_of(batch_model, max_active=2) as engine:
        release = hold(engine)
        running = submit(engine, request([5], max_tokens=200))
        queued = submit(engine, request([5], max_tokens=200, n_samples=2))
        assert queued.handle is not None
        assert running.handle is not None
        queued.handle.cancel()
        release()
        queued.wait()
        assert [type(event) for event in queued.events] == [SampleDone, SampleDone]
        running.handle.cancel()
        done = running.wait().of(SampleDone)[0]
        assert done.cause is StopCause.CANCELLED
        # A token whose character is not complete is held back, and never shown.
        assert len(running.tokens()) <= done.stats.n_generated_tokens < 200
        running.handle.cancel()
        now = idle(engine)
        assert now.n_free_pages == now.n_pages
        assert submit(engine, request([5])).wait().of(SampleDone)[0].cause is StopCause.MAX_TOKENS


def test_cancelling_in_prefill(batch_model: minfer.Model) -> None:
    with engine_of(batch_model, max_active=2) as engine:
        beside = submit(engine, request([9], max_tokens=150))
        cancelled = threading.Event()

        def cancel(event: Event) -> None:
            if isinstance(event, Started):
                cancelled.set()

        prompt = np.random.default_rng(1).integers(3, 300, 240).tolist()
        got = submit(engine, request(prompt, max_tokens=4), cancel)
        assert cancelled.wait(TIMEOUT_S)
        assert got.handle is not None
        got.handle.cancel()
        assert got.wait().of(SampleDone)[0].cause in (StopCause.CANCELLED, StopCause.MAX_TOKENS)
        beside.wait()
        now = idle(engine)
    assert now.n_free_pages == now.n_pages


def test_a_full_queue_is_refused_with_a_time_to_wait(batch_model: minfer.Model) -> None:
    with engine_of(batch_model, max_active=1, max_queued=2) as engine:
        release = hold(engine)
        waiting = [submit(engine, request([5])) for _ in range(2)]
        with pytest.raises(QueueFullError) as error:
            submit(engine, request([5]))
        assert error.value.n_queued == 2
        assert 1 <= error.value.retry_after_s <= 60
        release()
        for each in waiting:
            each.wait()
        submit(engine, request([5])).wait()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (request([]), ParameterError, "the prompt is empty"),
        (request([300]), ParameterError, "token id 300"),
        (request([5], n_samples=9), ParameterError, "n_samples is 9; it must be from 1 to 8"),
        (request([5], max_tokens=0), ParameterError, "max_tokens must be at least 1, not 0"),
        (request([5], logprobs=301), ParameterError, "logprobs is 301"),
        (request([5], prompt_logprobs=-1), ParameterError, "prompt_logprobs is -1"),
        (request([5] * 100, max_tokens=157), ContextError, "100 tokens and max_tokens 157 are 257 .*context has 256"),
        (request([5], max_tokens=200, n_samples=5), ContextError, "5 samples of up to 201 positions need 20 pages"),
        (request([5], stop=("",)), ParameterError, "stop must be non-empty"),
        (request([5], sampling=SamplingParams(logit_bias={400: 1.0})), ParameterError, "400"),
    ],
)
def test_what_can_not_be_answered_is_refused_at_once(
    batch_model: minfer.Model, wrong: minfer.engine.BatchRequest, error: type[Exception], message: str
) -> None:
    with engine_of(batch_model) as engine:
        with pytest.raises(error, match=message):
            submit(engine, wrong)
        assert engine.snapshot().n_prefilled_tokens == 0


def test_closing_fails_what_is_not_over(batch_model: minfer.Model) -> None:
    engine = batch_model.batch_engine(max_active=1)
    started = threading.Event()
    running = submit(engine, request([5], max_tokens=200), lambda event: started.set())
    queued = submit(engine, request([5]))
    assert started.wait(TIMEOUT_S)
    engine.close()
    engine.close()
    for each in (running, queued):
        assert isinstance(each.wait().error(), EngineClosedError)
    with pytest.raises(EngineClosedError):
        submit(engine, request([5]))
    assert engine.failure is None
    usage = batch_model._runtime.cache_usage()
    assert usage.n_used_pages == 0


def test_logits_that_are_not_numbers_fail_one_request_only(
    batch_model: minfer.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = batch_model._runtime.step

    def step(parts):  # type: ignore[no-untyped-def]
        logits = real(parts)
        rows = [part for part in parts for _ in part.output_rows]
        for row, part in enumerate(rows):
            if part.first_position == 3 and part.tokens[0] != 7 and len(part.tokens) == 1:
                logits[row, 0] = np.nan
        return logits

    with engine_of(batch_model) as engine:
        monkeypatch.setattr(batch_model._runtime, "step", step)
        release = hold(engine)
        broken = submit(engine, request([5, 6], max_tokens=20))
        healthy = submit(engine, request([5, 6, 9, 11], max_tokens=20))
        release()
        assert isinstance(broken.wait().error(), ModelError)
        assert len(healthy.wait().tokens()) == 20
        monkeypatch.undo()
        now = idle(engine)
        assert engine.failure is None
    assert now.n_free_pages == now.n_pages


def test_a_failing_step_ends_the_engine_and_says_why(
    batch_model: minfer.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(parts: object) -> None:
        raise RuntimeError("out of luck")

    with engine_of(batch_model) as engine:
        monkeypatch.setattr(batch_model._runtime, "step", step)
        got = submit(engine, request([5]))
        assert "out of luck" in str(got.wait().error())
        engine._thread.join(TIMEOUT_S)
        assert "out of luck" in str(engine.failure)
        with pytest.raises(EngineClosedError):
            submit(engine, request([5]))
    monkeypatch.undo()
    assert batch_model._runtime.cache_usage().n_used_pages == 0


@pytest.mark.parametrize("limits", [{"max_active": 0}, {"max_active": 65}, {"max_queued": -1}])
def test_limits_out_of_range(batch_model: minfer.Model, limits: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match=next(iter(limits))):
        batch_model.batch_engine("tiny", **limits)


def test_many_threads_may_submit(batch_model: minfer.Model) -> None:
    want = batch_model.generate([5, 6], seed=5, max_tokens=8, **PLAIN).tokens
    got: list[list[int]] = []
    with engine_of(batch_model, max_active=4, max_queued=100) as engine:
        threads = [
            threading.Thread(target=lambda: got.append(submit(engine, request([5, 6])).wait().tokens()))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        now = idle(engine)
    assert got == [list(want)] * 20
    assert now.n_free_pages == now.n_pages


def test_whoever_looks_sees_no_pages_in_use_by_nobody(batch_model: minfer.Model) -> None:
    seen: list[bool] = []
    with engine_of(batch_model) as engine:
        started = threading.Event()

        def look(event: Event) -> None:
            if isinstance(event, SampleDelta):
                started.set()
            if isinstance(event, SampleDone):
                now = engine.snapshot()
                seen.append(now.n_active == 0 and now.n_free_pages < now.n_pages)

        running = submit(engine, request([5, 6], max_tokens=200), look)
        assert started.wait(TIMEOUT_S)
        assert running.handle is not None
        running.handle.cancel()
        running.wait()
        idle(engine)
    assert seen == [False]
