"""RMSNorm and AddRMSNorm: y = x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from kernel_runner import f32, run_one, run_op, weight
from minfer.graph.ops import Add, AddRMSNorm, RMSNorm
from minfer.quants import GGMLType, dequantise
from tiny_runtime import same_bits

# Computed in float64 and rounded once to float32: half a unit in the last place, and a little for the float64.
ONE_ROUNDING = 2.0**-24 * (1 + 2.0**-20)


def exact(x: NDArray[np.float32], w: NDArray[np.float32], eps: float) -> NDArray[np.float64]:
    """One row at a time; the sum of squares is exact but for one rounding."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    scales = [1 / math.sqrt(math.fsum(row * row) / row.size + eps) for row in rows]
    return (rows * np.array(scales)[:, None] * w).reshape(x.shape)


def test_worked_value() -> None:
    y = run_one(RMSNorm(0.0), f32([[1, 2, 3, 4]]), weight(np.ones(4)))
    assert_allclose(y[0] / [1, 2, 3, 4], 0.365148, atol=5e-7)
    assert_allclose(y[0], np.arange(1, 5) / math.sqrt(7.5), rtol=ONE_ROUNDING)


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-5, 0.5])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_against_exact_sums(eps: float, size: float) -> None:
    rng = np.random.default_rng(0)
    x, w = f32(rng.normal(0, size, (5, 96))), f32(rng.normal(1, 0.2, 96))
    y = run_one(RMSNorm(eps), x, weight(w))
    assert_allclose(y, exact(x, w, eps), rtol=ONE_ROUNDING)


def test_eps_stands_under_the_root_and_the_mean_is_not_the_sum() -> None:
    x, w = f32([[1e-2, -2e-2, 3e-2, 4e-2]]), f32([1, 2, 3, 4])
    y = run_one(RMSNorm(1e-3), x, weight(w))
    wide = x.astype(np.float64)
    outside = wide / (np.sqrt(np.mean(wide**2)) + 1e-3) * w
    of_the_sum = wide / np.sqrt(np.sum(wide**2) + 1e-3) * w
    for wrong in (outside, of_the_sum, exact(x, w, 0.0), exact(x, np.ones_like(w), 1e-3)):
        assert (np.abs(y / wrong - 1) > 1e-2).any()
    assert_allclose(y, exact(x, w, 1e-3), rtol=ONE_ROUNDING)


def test_squares_are_summed_wider_than_float32() -> None:
    """4096 small squares after a large one: a running float32 sum loses them, and one of 1e60 is none at all."""
    x = f32(np.concatenate([[64.0], np.full(4095, 1e-2)])[None])
    in_float32 = x / np.sqrt(np.cumsum(x * x, dtype=np.float32)[-1] / np.float32(4096))
    want = exact(x, np.ones(4096, np.float32), 0.0)
    assert np.abs(in_float32 / want - 1).max() > 10 * ONE_ROUNDING
    assert_allclose(run_one(RMSNorm(0.0), x, weight(np.ones(4096))), want, rtol=ONE_ROUNDING)
    y = run_one(RMSNorm(0.0), f32([[1e30, -1e30]]), weight([1, 1]))
    assert y.tolist() == [[1, -1]]


def test_zeros_stay_zeros_and_nan_stays_in_its_row() -> None:
    y = run_one(RMSNorm(1e-6), f32([[0, 0], [math.nan, 1], [3, 4]]), weight([1, 1]))
    assert y[0].tolist() == [0, 0]
    assert np.isnan(y[1]).all()
    assert_allclose(y[2], f32([3, 4]) / math.sqrt(12.5), rtol=1e-6)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 3), st.integers(1, 200), st.integers(0, 99))
def test_a_row_is_the_same_bits_alone_and_among_others(n_tokens: int, n_heads: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = f32(rng.normal(size=(n_tokens, n_heads, width))), weight(rng.normal(size=width))
    together = run_one(RMSNorm(1e-6), x, w)
    for token in range(n_tokens):
        assert same_bits(run_one(RMSNorm(1e-6), x[token : token + 1], w)[0], together[token])
        for head in range(n_heads):
            assert same_bits(run_one(RMSNorm(1e-6), x[token : token + 1, head], w)[0], together[token, head])


@pytest.mark.parametrize("ggml_type", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_the_weight_may_be_of_any_type(ggml_type: GGMLType) -> None:
    rng = np.random.default_rng(1)
    x, packed = f32(rng.normal(size=(2, 64))), weight(rng.normal(1, 0.3, 64), ggml_type)
    values = dequantise(ggml_type, packed.data, 64)
    assert_allclose(run_one(RMSNorm(1e-6), x, packed), exact(x, values, 1e-6), rtol=ONE_ROUNDING)


def test_add_rms_norm_is_its_parts() -> None:
    rng = np.random.default_rng(2)
    a, b, w = f32(rng.normal(size=(5, 64))), f32(rng.normal(size=(5, 64))), weight(rng.normal(size=64))
    total, normalised = run_op(AddRMSNorm(1e-6), a, b, w).outputs
    assert same_bits(total, run_one(Add(), a, b))
    assert same_bits(normalised, run_one(RMSNorm(1e-6), total, w))
    assert not same_bits(normalised, run_one(RMSNorm(1e-6), a, w))
