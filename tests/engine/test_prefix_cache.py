"""Reused prefixes: found wherever they are, the same bits as cold, and never in the way of a live sequence."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import minfer
from minfer.backends import Backend
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.engine.kv_cache import KVSequence, token_bytes
from minfer.engine.page_pool import PagePool
from minfer.engine.prefix_cache import PrefixCache
from minfer.engine.runtime import Runtime, StepPart
from minfer.engine.session import Extension, Session, extend_together
from minfer.errors import ContextError, ParameterError
from minfer.models import KVTypes
from tiny_cache_types import KV_TYPES
from tiny_load import tiny_path
from tiny_runtime import same_bits, tiny_runtime, whole_logits

TOKENS = np.random.default_rng(5).integers(0, 300, 150).tolist()
OTHER = np.random.default_rng(6).integers(0, 300, 150).tolist()


class Copies:
    def copy_page(self, source: int, target: int) -> None:
        pass

    def check_movable(self) -> None:
        pass

    def move_rows(self, *_: object) -> None:
        pass


class Kept:
    """A pool with a prefix cache of some pages, each of one byte."""

    def __init__(self, n_pages: int = 8, max_pages: int = 8) -> None:
        self.pool = PagePool(n_pages)
        self.cache = PrefixCache(self.pool, 1, max_pages)

    def live(self, tokens: Sequence[int]) -> KVSequence:
        sequence = KVSequence(self.pool, Copies(), 1024)
        sequence.reserve(len(tokens))
        sequence.append(tokens)
        self.cache.watch(sequence)
        return sequence

    def finished(self, tokens: Sequence[int]) -> None:
        sequence = self.live(tokens)
        self.cache.keep(sequence)
        sequence.free()

    def n_found(self, tokens: Sequence[int]) -> int:
        return self.cache.find(token_bytes(tokens)).n_tokens

    def begun(self, tokens: Sequence[int]) -> KVSequence:
        """A sequence of what is found."""
        sequence, found = KVSequence(self.pool, Copies(), 1024), self.cache.find(token_bytes(tokens))
        sequence.adopt(found.pages, tokens[: found.n_tokens])
        return sequence


def test_the_longest_prefix_is_found_among_live_and_finished_ones() -> None:
    kept = Kept()
    kept.finished([1, 2, 3, 4])
    live = kept.live([1, 2, 5, 6, 7])
    assert kept.n_found([1, 2, 3, 9]) == 3
    assert kept.n_found([1, 2, 5, 6, 9]) == 4
    assert kept.n_found([1, 9]) == 1
    assert kept.n_found([2, 1]) == 0
    live.free()
    assert kept.n_found([1, 2, 5, 6, 9]) == 2


@pytest.mark.parametrize("n_common", [1, 255, 256, 257, 511, 512, 600])
def test_a_prefix_of_any_length_is_measured(n_common: int) -> None:
    kept = Kept(16, 16)
    text = list(range(600))
    kept.finished([*text[:n_common], *[-1] * (600 - n_common)])
    assert kept.n_found([*text, 7]) == n_common


def test_the_last_token_is_never_reused() -> None:
    kept = Kept()
    kept.finished([1, 2, 3])
    assert [kept.n_found([1, 2, 3][:n]) for n in (0, 1, 2, 3)] == [0, 0, 1, 2]


def test_a_finished_sequence_keeps_its_pages_and_one_that_goes_on_from_it_takes_its_place() -> None:
    kept = Kept()
    kept.finished(range(70))
    assert (kept.pool.n_free, kept.cache.n_pages) == (6, 2)
    longer = kept.begun([*range(70), 5])
    longer.reserve(200)
    longer.append(range(70, 200))
    kept.cache.keep(longer)
    longer.free()
    assert (kept.pool.n_free, kept.cache.n_pages) == (4, 4)
    kept.finished(range(30))
    assert (kept.pool.n_free, kept.cache.n_pages) == (4, 4)
    kept.cache.clear()
    assert kept.pool.n_free == 8


def test_the_least_recently_used_goes_when_the_budget_is_passed() -> None:
    kept = Kept(8, 3)
    for first in (1, 2, 3):
        kept.finished([first] * 10)
    assert kept.n_found([1, 1]) == 1
    kept.finished([4] * 10)
    assert [kept.n_found([first] * 5) for first in (1, 2, 3, 4)] == [4, 0, 4, 4]
    kept.finished([3, 3])  # the beginning of one that is kept: that one is of use
    kept.finished([5] * 100)
    assert [kept.n_found([first] * 5) for first in (1, 2, 3, 4, 5)] == [0, 0, 4, 0, 4]
    assert (kept.cache.n_pages, kept.pool.n_free) == (3, 5)


def test_of_a_sequence_larger_than_the_budget_the_beginning_is_kept() -> None:
    kept = Kept(8, 2)
    kept.finished(range(300))
    assert (kept.cache.n_pages, kept.n_found(range(300))) == (2, 128)


def test_shared_pages_count_once() -> None:
    kept = Kept(8, 8)
    kept.finished(range(128))
    branch = kept.begun(range(65))
    branch.reserve(65)
    branch.append([-1])
    kept.cache.keep(branch)
    branch.free()
    assert (kept.cache.n_pages, kept.pool.n_free) == (3, 5)


def test_live_sequences_get_the_pages_that_finished_ones_keep() -> None:
    kept = Kept(4, 4)
    kept.finished([1] * 64)
    kept.finished([2] * 64)
    kept.finished([3] * 64)
    live = [kept.live([4] * 128)]
    assert [kept.n_found([first] * 5) for first in (1, 2, 3)] == [0, 4, 4]
    live.append(kept.live([5] * 128))
    assert (kept.cache.n_pages, kept.pool.n_free) == (0, 0)
    with pytest.raises(ContextError):
        live[0].reserve(129)


@pytest.mark.parametrize("drops", [False, True])
def test_a_page_shared_with_a_kept_sequence_alone_needs_no_free_one(drops: bool) -> None:
    """The kept sequence goes; its pages were all the live one's, so that none becomes free, and none is needed."""
    kept = Kept(2, 2)
    live = kept.live(range(100))
    kept.cache.keep(live)
    live.reserve(100)
    if drops:
        live.drop(70, 80)
    else:
        live.reserve(101)
    assert (live.pages, kept.cache.n_pages, kept.pool.n_free) == ((0, 1), 0, 0)


def test_it_can_be_off() -> None:
    kept = Kept(4, 0)
    kept.finished([1, 2, 3])
    kept.live([1, 2, 3])
    assert (kept.cache.n_pages, kept.n_found([1, 2, 3])) == (0, 0)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest, tiny_dir: Path) -> Backend:
    return ReferenceBackend() if request.param == "reference" else CpuBackend(kernel_cache=tiny_dir / "kernels")


@pytest.mark.parametrize("kv_types", KV_TYPES.values(), ids=KV_TYPES)
def test_cold_and_reused_are_the_same_bits_wherever_the_prefix_ends(
    backend: Backend, kv_types: KVTypes, tiny_dir: Path
) -> None:
    with tiny_runtime(
        tiny_path(tiny_dir, "qwen3"), backends=(backend,), kv_types=kv_types, max_tokens=250, prefix_cache_bytes=2**30
    ) as run:
        for n_common in (1, 2, 31, 63, 64, 65, 127, 128, 129, 149):
            text = [*TOKENS[:n_common], *OTHER[n_common:]]
            cold = whole_logits(run, text)
            run.prefix_cache.clear()
            with Session(run) as first:
                first.extend(TOKENS)
                with Session(run, reuse=text) as from_live:
                    assert from_live.n_tokens == n_common
                    assert same_bits(from_live.extend_all(text[n_common:]), cold[n_common:])
                    # What it shared is as it was.
                    assert same_bits(first.extend([7]), _cold_last(run, [*TOKENS, 7]))
            with Session(run, reuse=[*text, 0]) as from_kept:
                assert from_kept.tokens == tuple(text)
                from_kept.truncate(n_common)
                assert same_bits(from_kept.extend_all(text[n_common:], chunk=40), cold[n_common:])
        run.prefix_cache.clear()
        assert run.pool.n_free == run.pool.n_pages


def _cold_last(run: Runtime, tokens: Sequence[int]) -> np.ndarray:
    sequence = run.sequence()
    with Session(run, sequence=sequence) as session:
        return session.extend(tokens)


def test_sessions_of_a_model_reuse_what_others_left(tiny_dir: Path) -> None:
    with minfer.load(tiny_path(tiny_dir), prefix_cache_bytes=0) as cold, minfer.load(tiny_path(tiny_dir)) as warm:
        with warm.session() as first:
            first.extend(TOKENS[:100])
        with warm.session(reuse=[*TOKENS[:80], *OTHER]) as second, cold.session(reuse=TOKENS) as alone:
            assert (second.n_tokens, alone.n_tokens) == (80, 0)
            want = cold.logits([*TOKENS[:80], *OTHER[:50]])
            assert same_bits(second.extend(OTHER[:50]), want)
        usage = warm._runtime.cache_usage()
        assert (usage.n_used_pages, usage.n_kept_pages) == (4, 4)  # 2, and 3 of which they share the first
        assert usage.used_bytes == 4 * 64 * usage.position_bytes
    for bad in (-1, 0.5, True):
        with pytest.raises(ParameterError, match="prefix_cache_bytes"):
            minfer.load(tiny_path(tiny_dir), prefix_cache_bytes=bad)  # type: ignore[arg-type]


def test_live_sessions_never_fail_for_kept_ones(tiny_dir: Path) -> None:
    """The pool holds four sequences of full length, and far more than four have been."""
    with minfer.load(tiny_path(tiny_dir)) as model:
        for first in range(12):
            with model.session() as session:
                session.extend([first] * 256)
        sessions = [model.session() for _ in range(4)]
        for first, session in enumerate(sessions):
            session.extend([50 + first] * 256)
        assert model._runtime.cache_usage().n_kept_pages == 0
        with model.session() as one_more, pytest.raises(ContextError, match="the KV cache is full"):
            one_more.extend([1])


def test_sessions_step_together_with_the_bits_of_each_alone(backend: Backend, tiny_dir: Path) -> None:
    with tiny_runtime(tiny_path(tiny_dir, "qwen3"), backends=(backend,), max_tokens=48) as run:
        texts = [TOKENS[:60], OTHER[:100], [*TOKENS[:60], *OTHER[:7]], OTHER[:30]]
        want = [_cold_last(run, text) for text in texts]
        with Session(run) as a, Session(run) as b, Session(run) as d:
            a.extend(TOKENS[:59])
            b.extend(OTHER[:20])
            with a.fork() as c:
                # More tokens than fit into one step, page lists that share pages, and one without logits.
                got = extend_together(
                    [
                        Extension(a, TOKENS[59:60]),
                        Extension(b, OTHER[20:100]),
                        Extension(c, [*TOKENS[59:60], *OTHER[:7]]),
                        Extension(d, OTHER[:30], wants_logits=False),
                    ]
                )
                assert got[3] is None
                for one, logits in zip(got[:3], want, strict=False):
                    assert one is not None
                    assert same_bits(one, logits)
                assert [session.tokens for session in (a, b, c, d)] == [tuple(text) for text in texts]
        assert run.pool.n_free == run.pool.n_pages


def test_more_page_references_or_outputs_than_a_step_may_have_take_several(tiny_dir: Path) -> None:
    with minfer.load(tiny_path(tiny_dir)) as model:
        want = model.logits([*TOKENS, 5])
        with model.session() as first:
            first.extend(TOKENS)
            forks = [first.fork() for _ in range(13)]
            assert len(forks) * 3 > 2 * model._runtime.max_pages_per_step
            for logits in extend_together([Extension(fork, [5]) for fork in forks]):
                assert logits is not None
                assert same_bits(logits, want)
            for fork in forks:
                fork.close()


def test_a_step_gives_only_as_many_logits_as_it_may(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "max_outputs_per_step", 2)
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run:
        n_outputs: list[int] = []
        step = run.step

        def counted(parts: Sequence[StepPart]) -> np.ndarray:
            n_outputs.append(sum(len(part.output_rows) for part in parts))
            return step(parts)

        monkeypatch.setattr(run, "step", counted)
        sessions = [Session(run) for _ in range(6)]
        got = extend_together([Extension(each, [i, 7], i != 1) for i, each in enumerate(sessions)])
        assert n_outputs == [2, 2, 1]
        for i, logits in enumerate(got):
            assert logits is None if i == 1 else same_bits(logits, _cold_last(run, [i, 7]))
        for session in sessions:
            session.close()


def test_what_cannot_step_together(tiny_dir: Path) -> None:
    assert extend_together([]) == []
    path = tiny_path(tiny_dir)
    with minfer.load(path) as model, minfer.load(path) as other, model.session() as a, other.session() as b:
        with pytest.raises(ParameterError, match="only once"):
            extend_together([Extension(a, [1]), Extension(a, [2])])
        with pytest.raises(ParameterError, match="different models"):
            extend_together([Extension(a, [1]), Extension(b, [2])])
        with model.session() as c:
            with pytest.raises(ContextError):
                extend_together([Extension(a, [1]), Extension(c, [1] * 300)])
            with pytest.raises(ParameterError, match="token id 300"):
                extend_together([Extension(a, [1] * 70), Extension(c, [300])])
        assert model._runtime.cache_usage().n_used_pages == 0  # what had been taken for the first is back
        with pytest.raises(ParameterError, match="session is closed"):
            extend_together([Extension(a, [1]), Extension(c, [1])])
        assert a.n_tokens == 0


def test_sessions_of_several_threads_share_and_close_in_any_order(tiny_dir: Path) -> None:
    with minfer.load(tiny_path(tiny_dir)) as model:
        texts = [[*TOKENS[: 40 + 9 * i], *OTHER[: 20 + i]] for i in range(6)]
        with minfer.load(tiny_path(tiny_dir), prefix_cache_bytes=0) as cold:
            want = [cold.logits(text) for text in texts]
        wrong: list[str] = []

        def work(i: int) -> None:
            for _ in range(4):
                with model.session(reuse=texts[i]) as session:
                    logits = session.extend(texts[i][session.n_tokens :], chunk=11)
                    with session.fork() as fork:
                        fork.extend([1, 2, 3])
                    if not same_bits(logits, want[i]) or session.tokens != tuple(texts[i]):
                        wrong.append(f"text {i}")

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        model._runtime.prefix_cache.clear()
        assert model._runtime.pool.n_free == model._runtime.pool.n_pages
