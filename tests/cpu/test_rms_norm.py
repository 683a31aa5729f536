"""RMSNorm and AddRMSNorm of the CPU backend against exact sums, with records and in place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import (
    INTERPRETER,
    TARGETS,
    Array,
    aligned,
    check_chunks_are_disjoint,
    check_close,
    normal,
    run_kernel,
    same_bits,
)
from minfer.backends.cpu.activations import QuantisedRow, quantise_rows
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.rms_norm import NormShape, trace_rms_norm

TOKENS, OUTPUTS = StepWord.N_TOKENS, StepWord.N_OUTPUTS
# The scale is rounded once to float32, and each of two products once; the float64 before adds nothing that counts.
THREE_ROUNDINGS = 3 * 2.0**-24 * (1 + 2.0**-20)
EPS = 1e-5


def exact(x: NDArray[np.float32], weight: NDArray[np.float32], eps: float) -> NDArray[np.float64]:
    """The sum of squares is exact but for one rounding."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    scales = [1 / math.sqrt(math.fsum(row * row) / row.size + eps) for row in rows]
    return (rows * np.array(scales)[:, None] * weight).reshape(x.shape)


def normed(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float = EPS, target: str = TARGETS[0]
) -> NDArray[np.float32]:
    """x [n, n_groups, width], normalised."""
    n, n_groups, width = x.shape
    y = aligned(np.full_like(x, 7.0))
    kernel = trace_rms_norm(NormShape(width, eps, TOKENS, n_groups))
    run_kernel(kernel, [x, None, weight, None, y, None], range(-(-n // 4)), n_tokens=n, target=target)
    return y


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("width", "n_groups"), [(576, 1), (17, 1), (5, 3), (16, 4), (1, 1)])
def test_against_exact_sums(width: int, n_groups: int, target: str) -> None:
    x, weight = normal(5, n_groups, width), normal(width, seed=1)
    x[1] *= 1e-3
    x[2] *= 1e15
    want = exact(x, weight, EPS)
    y = normed(x, weight, target=target)
    check_close(y, want, THREE_ROUNDINGS * np.abs(want))
    if width > 1:
        wrong = x / np.sqrt(np.square(x).sum(axis=-1, keepdims=True) + EPS) * weight
        with pytest.raises(AssertionError, match="allowed difference"):
            check_close(wrong, want, THREE_ROUNDINGS * np.abs(want))


def test_worked_value() -> None:
    y = normed(aligned(np.array([[[1, 2, 3, 4]]], np.float32)), aligned(np.ones(4, np.float32)), eps=0.0)
    assert abs(y[0, 0, 0] - 0.365148) < 5e-7
    np.testing.assert_allclose(y[0, 0], np.arange(1, 5) / math.sqrt(7.5), rtol=THREE_ROUNDINGS)


@pytest.mark.parametrize("target", TARGETS)
def test_squares_are_summed_wider_than_float32(target: str) -> None:
    """4095 small squares after a large one: float32 loses them in a running sum, and those of 1e30 altogether."""
    x, weight = np.full((1, 1, 4096), 1e-2, np.float32), np.ones(4096, np.float32)
    x[0, 0, 0] = 64
    want = exact(x, weight, 0.0)
    in_float32 = x / np.sqrt(np.cumsum(x * x, dtype=np.float32)[-1] / np.float32(4096))
    assert np.abs(in_float32 / want - 1).max() > 10 * THREE_ROUNDINGS
    check_close(normed(x, weight, 0.0, target), want, THREE_ROUNDINGS * np.abs(want))
    y = normed(np.array([[[1e30, -1e30]]], np.float32), np.ones(2, np.float32), 0.0, target)
    np.testing.assert_allclose(y[0, 0], [1, -1], rtol=THREE_ROUNDINGS)


def test_zeros_stay_zeros_and_nan_stays_in_its_row() -> None:
    x = np.array([[[0, 0]], [[math.nan, 1]], [[3, 4]]], np.float32)
    y = normed(x, np.ones(2, np.float32))
    assert y[0].tolist() == [[0, 0]]
    assert np.isnan(y[1]).all()
    np.testing.assert_allclose(y[2, 0], np.array([3, 4]) / math.sqrt(12.5 + EPS), rtol=THREE_ROUNDINGS)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sum_over", [0, 1])
def test_add_with_records_into_either_addend(sum_over: int, target: str) -> None:
    n, width = 6, 96
    addends, weight = [normal(n, width, seed=seed) for seed in range(2)], normal(width, seed=2)
    total = addends[0] + addends[1]
    want = normed(total[:, None], weight)[:, 0]
    y, records = np.empty_like(total), np.zeros((n, QuantisedRow(width).stride_bytes), np.uint8)
    kernel = trace_rms_norm(NormShape(width, EPS, OUTPUTS, adds=True, quantised=True))
    a, b = addends
    run_kernel(kernel, [a, b, weight, addends[sum_over], y, records], range(2), n_outputs=n, target=target)
    assert same_bits(addends[sum_over], total)
    assert same_bits(addends[1 - sum_over], normal(n, width, seed=1 - sum_over))
    assert same_bits(y, want)
    assert same_bits(records, quantise_rows(want))


def test_the_result_may_overwrite_x() -> None:
    x, weight = normal(5, 3, 20), normal(20, seed=1)
    want = normed(x, weight)
    kernel = trace_rms_norm(NormShape(20, EPS, TOKENS, 3))
    run_kernel(kernel, [x, None, weight, None, x], range(2), n_tokens=5)
    assert same_bits(x, want)


def test_interpreted_it_gives_the_same_bits() -> None:
    x, weight = normal(3, 2, 21), normal(21, seed=1)
    assert same_bits(normed(x, weight, target=INTERPRETER), normed(x, weight))


def test_a_row_is_the_same_bits_alone() -> None:
    x, weight = normal(9, 1, 96), normal(96, seed=1)
    together = normed(x, weight)
    for row in range(9):
        assert same_bits(normed(x[row : row + 1], weight), together[row : row + 1])


def test_chunks_write_their_own_rows() -> None:
    n, width = 6, 64
    a, b, weight = normal(n, width), normal(n, width, seed=1), normal(width, seed=2)
    kernel = trace_rms_norm(NormShape(width, EPS, TOKENS, adds=True, quantised=True))
    outputs = [np.full((n + 4, width), 7.0, np.float32), np.full((n + 4, width), 7.0, np.float32)]
    records = np.full((n + 4, QuantisedRow(width).stride_bytes), 0xA5, np.uint8)

    def run(chunks: Iterable[int], given: Sequence[Array]) -> None:
        total, y, _ = given
        run_kernel(kernel, [a, b, weight, *given], chunks, n_tokens=n)
        assert (total[n:] == 7.0).all()
        assert (y[n:] == 7.0).all()

    check_chunks_are_disjoint(run, [*outputs, records], n_chunks=2)
