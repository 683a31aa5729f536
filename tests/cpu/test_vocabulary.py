"""The native passes over the vocabulary against their definitions and, bit for bit, against NumPy's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cpu_runner import INTERPRETER, TARGETS, Array, aligned
from distributions import INF, f32
from minfer.backends import make_backend
from minfer.backends.cpu.vocabulary import NativeVocabularyOps
from minfer.backends.cpu.vocabulary.kernels import (
    GROUPS_PER_BLOCK,
    trace_arg_max,
    trace_collect,
    trace_exp_sum,
    trace_group_maxima,
)
from minfer.backends.reference import vocabulary as definition
from minfer.errors import ModelError
from minfer.sampling import NumpyVocabularyOps, Sampler, SamplingParams, token_logprobs
from minfer.sampling.exponentials import BLOCK, ROWS
from minfer.settings import read_settings
from minfer.simd import NativeModule, compile_kernels, interpret, target_named

SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025, 2500, 9_001]
"""Around a vector, a run of either loop and a block."""
NUMPY = NumpyVocabularyOps()


@cache
def native(target: str) -> NativeVocabularyOps:
    return NativeVocabularyOps(target_named(target), None)


def normal(n: int, seed: int = 0) -> NDArray[np.float32]:
    """Logits at an address that is only aligned to floats, as a row of an odd vocabulary is."""
    memory = np.zeros(n + 17, np.float32)
    row = memory[1 + (-memory.ctypes.data // 4) % 16 :][:n]
    row[:] = np.random.default_rng(n + seed).standard_normal(n) * 3
    assert row.ctypes.data % 64 == 4
    return row


def with_ties(n: int) -> NDArray[np.float32]:
    """Few different logits, zeros of either sign among them, and banned tokens."""
    values = np.random.default_rng(n).choice(f32(-2, -1, -0.0, 0.0, 1, -INF), n)
    values[n // 2] = 0.0
    return values.astype(np.float32)


def exp_sum_bound(n: int) -> float:
    """Relative: the order of the sum, 4 half units for an exponential, 2 for that of the definition, 1 for its sum."""
    return (ROWS + n / BLOCK + 4 + 4 + 2 + 1) * 2.0**-53


def check_exp_sum(got: float, logits: NDArray[np.float32], largest: float, scale: float = 1.0) -> None:
    want = definition.exp_sum(logits, largest, scale)
    assert abs(got - want) <= exp_sum_bound(len(logits)) * want, f"{got} and {want}"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("make", [normal, with_ties])
def test_against_the_definitions(make: Callable[[int], NDArray[np.float32]], n: int, target: str) -> None:
    ops, logits = native(target), make(n)
    best = definition.arg_max(logits)
    assert ops.arg_max(logits) == best
    for k in {1, 2, min(40, n), n, n + 3}:
        tokens = ops.top_k(logits, k)
        assert tokens.dtype == np.int64
        assert tokens.tolist() == definition.top_k(logits, k)
    largest = float(logits[best])
    check_exp_sum(ops.exp_sum(logits, largest), logits, largest)
    check_exp_sum(ops.exp_sum(logits, largest + 3.3), logits, largest + 3.3)
    check_exp_sum(ops.exp_sum(logits, largest, 1 / 3), logits, largest, 1 / 3)


def test_wrong_results_are_noticed() -> None:
    logits = with_ties(1000)
    assert 999 - int(logits[::-1].argmax()) != definition.arg_max(logits)  # the last among equals
    by_higher_id = sorted(range(1000), key=lambda token: (-logits[token], -token))[:40]
    assert by_higher_id != definition.top_k(logits, 40)
    values = normal(9_001)
    largest = float(values.max())
    in_float32 = float(np.exp(values - np.float32(largest)).sum())
    for wrong in (in_float32, definition.exp_sum(values, largest) - math.exp(float(values.min()) - largest)):
        with pytest.raises(AssertionError, match="and"):
            check_exp_sum(wrong, values, largest)


@pytest.mark.parametrize("target", TARGETS)
def test_arg_max_of_two_equal_ones_is_the_first_wherever_they_are(target: str) -> None:
    logits = np.zeros(200, np.float32)
    for first in range(0, 64, 9):
        for second in range(first + 1, 200, 3):
            logits[[first, second]] = 1
            assert native(target).arg_max(logits) == first
            logits[[first, second]] = 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", SIZES)
def test_numpy_gives_the_same_bits(n: int, target: str) -> None:
    ops = native(target)
    for logits in (normal(n), with_ties(n)):
        largest = float(logits.max())
        assert ops.exp_sum(logits, largest) == NUMPY.exp_sum(logits, largest)
        assert ops.exp_sum(logits, largest + 700) == NUMPY.exp_sum(logits, largest + 700)
        for scale in (1 / 0.8, 1e300, 1e-300):
            assert ops.exp_sum(logits, largest, scale) == NUMPY.exp_sum(logits, largest, scale)
        assert ops.arg_max(logits) == NUMPY.arg_max(logits)
        assert ops.top_k(logits, 40).tolist() == NUMPY.top_k(logits, 40).tolist()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(width=32, allow_nan=False, max_value=2.0**127) | st.just(-INF), min_size=1, max_size=200),
    st.integers(1, 220),
)
def test_any_logits_give_the_same_everywhere(values: list[float], k: int) -> None:
    logits = f32(*values, -3.0)
    largest = float(logits.max())
    want = (definition.arg_max(logits), definition.top_k(logits, k), NUMPY.exp_sum(logits, largest))
    for target in TARGETS:
        ops = native(target)
        assert (ops.arg_max(logits), ops.top_k(logits, k).tolist(), ops.exp_sum(logits, largest)) == want


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [5, 64, 129, 1041])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, INF])
def test_what_is_not_a_number_is_found_wherever_it_is(bad: float, n: int, target: str) -> None:
    ops = native(target)
    for place in {0, 3, n // 2, n - 1}:
        logits = normal(n)
        logits[place] = bad
        for refused in (ops.arg_max, lambda x: ops.top_k(x, 2), lambda x: ops.exp_sum(x, 20.0)):
            with pytest.raises(ModelError, match=rf"for token {place} \(1 of {n}"):
                refused(logits)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 70])
def test_nothing_but_banned_tokens(n: int, target: str) -> None:
    banned = np.full(n, -INF, np.float32)
    with pytest.raises(ModelError, match="all -inf"):
        native(target).arg_max(banned)
    assert native(target).top_k(banned, 3).tolist() == []
    assert native(target).exp_sum(banned, 0.0) == 0


KERNELS = {each.name: each for each in (trace_arg_max(), trace_group_maxima(), trace_collect(), trace_exp_sum())}


@cache
def compiled(target: str) -> NativeModule:
    return compile_kernels(KERNELS.values(), target_named(target))


def run(kernel: str, arguments: list[Array | int | float], target: str) -> None:
    if target == INTERPRETER:
        interpret(KERNELS[kernel], *arguments)
    else:
        compiled(target)[kernel](*arguments)


@pytest.mark.parametrize("target", [INTERPRETER, *TARGETS])
@pytest.mark.parametrize("n", [1, 63, 64, 150])
def test_kernels_stay_within_their_buffers(n: int, target: str) -> None:
    """The interpreter checks every access; compiled code must leave what lies behind alone."""
    logits, ok = aligned(normal(n)), np.zeros(1, np.int64)

    best = np.array([-1, 77])
    run("arg_max", [logits, n, best[:1], ok], target)
    assert (best.tolist(), ok.tolist()) == ([int(logits.argmax()), 77], [1])

    n_groups = -(-n // 64) * GROUPS_PER_BLOCK
    maxima = np.full(n_groups + 1, 77, np.float32)
    run("group_maxima", [logits, n, 64, maxima[:n_groups], ok], target)
    assert maxima[:n].tolist() == logits.tolist()
    assert maxima[n:].tolist() == [*[-INF] * (n_groups - n), 77]

    ids, count, threshold = np.full(n + 2, 77, np.int32), np.array([-1, 77]), float(np.median(logits))
    run("collect", [logits, n, threshold, ids[: n + 1], count[:1]], target)
    found = np.flatnonzero(logits >= np.float32(threshold)).tolist()
    assert (ids[: len(found)].tolist(), ids[n + 1], count.tolist()) == (found, 77, [len(found), 77])

    total, largest = np.array([-1.0, 77.0]), float(logits.max())
    run("exp_sum", [logits, n, largest, 1.25, total[:1], ok], target)
    assert total.tolist() == [NUMPY.exp_sum(logits, largest, 1.25), 77]


def test_group_maxima_of_larger_blocks() -> None:
    logits = aligned(normal(500))
    maxima, ok = np.zeros(3 * 64, np.float32), np.zeros(1, np.int64)
    run("group_maxima", [logits, 500, 192, maxima, ok], TARGETS[0])
    want = [
        max([logits[i] for i in range(block, min(block + 192, 500)) if i % 64 == lane], default=-INF)
        for block in (0, 192, 384)
        for lane in range(64)
    ]
    assert maxima.tolist() == want


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=2, repetition_penalty=1.3, logit_bias={5: 2.0, 6: -INF}),
        SamplingParams(seed=3, top_k=0, top_p=0.9, min_p=0, temperature=1.5),
        SamplingParams(seed=4, top_k=0, top_p=1, min_p=0, temperature=1),
        SamplingParams(seed=5, mirostat=1),
        SamplingParams(seed=6, mirostat=2, presence_penalty=1),
        SamplingParams(seed=6, top_k=0, top_p=1, min_p=0, temperature=0.7),
        SamplingParams(temperature=0, seed=7),
    ],
)
def test_a_sampler_gives_the_same_tokens_with_either(params: SamplingParams) -> None:
    logits = normal(3000)
    with_native, with_numpy = Sampler(params, 3000, ops=native(TARGETS[0])), Sampler(params, 3000)
    history: list[int] = []
    for _ in range(30):
        token = with_native.sample(logits, history)
        assert token == with_numpy.sample(logits, history)
        assert token_logprobs(logits, token, 5, native(TARGETS[0])) == token_logprobs(logits, token, 5)
        history.append(token)
    assert with_native.state() == with_numpy.state()


def test_every_backend_offers_them(tmp_path: Path) -> None:
    settings_here = read_settings({"MINFER_CACHE_DIR": str(tmp_path)})
    logits = normal(300)
    for name in ("cpu", "reference"):
        ops = make_backend(name, settings_here).vocabulary_ops()
        assert ops.top_k(logits, 9).tolist() == definition.top_k(logits, 9)
    assert any((tmp_path / "kernels").iterdir())  # compiled once, kept
    again = make_backend("cpu", settings_here).vocabulary_ops()
    assert again.exp_sum(logits, 20.0) == NUMPY.exp_sum(logits, 20.0)
