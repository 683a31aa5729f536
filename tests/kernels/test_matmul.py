"""MatMul, MatMulGroup, GatedMatMul: y = x w^T (+ bias)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from kernel_runner import f32, run_one, run_op, weight
from minfer.graph.ops import ActivationKind, GatedActivation, GatedMatMul, MatMul, MatMulGroup
from minfer.quants import GGMLType, dequantise
from tiny_runtime import same_bits


def exact(
    x: NDArray[np.float32], w: NDArray[np.float32], bias: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """Products of float32s are exact in float64, and `fsum` adds them without error."""
    extra = np.zeros(len(w)) if bias is None else bias.astype(float)
    return np.array(
        [
            [math.fsum([*(row * column), b]) for column, b in zip(w.astype(float), extra, strict=True)]
            for row in x.astype(float)
        ]
    )


def assert_projected(
    y: NDArray[np.float32], x: NDArray[np.float32], w: NDArray[np.float32], bias: NDArray[np.float32] | None = None
) -> None:
    """Summed in float64, in whatever order, and rounded once to float32."""
    sizes = np.abs(x).astype(float) @ np.abs(w).astype(float).T + (0 if bias is None else np.abs(bias))
    n_added = x.shape[1] + 1
    error = np.abs(y - exact(x, w, bias))
    assert (error <= 2.0**-24 * np.abs(y) + n_added * 2.0**-53 * sizes).all()


def test_a_row_of_the_weight_makes_a_column_of_the_output() -> None:
    y = run_one(MatMul(), f32([[1, 2, 3], [4, 5, 6]]), weight([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]))
    assert y.tolist() == [[1, 2, 3, 6], [4, 5, 6, 15]]


def test_the_bias_is_added_once_to_every_token() -> None:
    x, w = f32([[1, 2], [3, 4]]), weight([[1, 1], [1, -1]])
    assert run_one(MatMul(has_bias=True), x, w, weight([0.5, 100])).tolist() == [[3.5, 99], [7.5, 99]]


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_against_exact_sums(n_tokens: int, n_columns: int, n_rows: int, has_bias: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = f32(rng.normal(size=(n_tokens, n_columns))), f32(rng.normal(size=(n_rows, n_columns)))
    bias = f32(rng.normal(size=n_rows)) if has_bias else None
    biases = () if bias is None else (weight(bias),)
    y = run_one(MatMul(has_bias), x, weight(w), *biases)
    assert_projected(y, x, w, bias)


def test_sums_are_wider_than_float32() -> None:
    """What cancels in float64 is gone in float32, whose 2^24 + 1 is 2^24. The bias is added before the rounding."""
    x = f32([[2.0**24, 1, -(2.0**24)]])
    assert run_one(MatMul(), x, weight([[1, 1, 1]])).tolist() == [[1]]
    y = run_one(MatMul(has_bias=True), f32([[2.0**24, 1]]), weight([[1, 1]]), weight([-(2.0**24)]))
    assert y.tolist() == [[1]]


@pytest.mark.parametrize(
    "ggml_type", [GGMLType.F16, GGMLType.BF16, GGMLType.Q4_0, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K]
)
def test_a_quantised_weight_counts_as_what_it_holds(ggml_type: GGMLType) -> None:
    rng = np.random.default_rng(0)
    x, values = f32(rng.normal(size=(3, 256))), f32(rng.normal(size=(16, 256)))
    packed = weight(values, ggml_type)
    y = run_one(MatMul(), x, packed)
    assert same_bits(y, run_one(MatMul(), x, weight(dequantise(ggml_type, packed.data, 256))))
    assert not same_bits(y, run_one(MatMul(), x, weight(values)))


def cancelling(
    rng: np.random.Generator, n_tokens: int, n_columns: int, n_rows: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """x and w whose products come in pairs, v and -v, scattered over the columns: every sum is 0. What rounding leaves
    of it tells in which order float64 has added; where nothing cancels, almost any order gives the same float32."""
    half = n_columns // 2
    x = rng.normal(size=(n_tokens, half)) * 10 ** rng.uniform(-3, 3, half)
    w = rng.normal(size=(n_rows, half))
    order = rng.permutation(2 * half)
    return f32(np.concatenate([x, -x], axis=1)[:, order]), f32(np.concatenate([w, w], axis=1)[:, order])


def test_cancelling_sums_show_the_order_of_adding() -> None:
    x, w = cancelling(np.random.default_rng(0), 50, 400, 20)
    one, other = run_one(MatMul(), x, weight(w)), run_one(MatMul(), x[:, ::-1].copy(), weight(w[:, ::-1]))
    assert (one != other).mean() > 0.5
    assert np.abs(one).max() < 1e-9


# Small ones, ones that BLAS cuts into several blocks along each dimension, and ones that it spreads over threads.
@pytest.mark.parametrize(("n_columns", "n_rows"), [(2, 5), (8, 3), (34, 130), (896, 128), (576, 1536), (2500, 300)])
def test_a_token_is_the_same_bits_alone_in_any_batch_and_with_any_number_of_threads(
    n_columns: int, n_rows: int
) -> None:
    rng = np.random.default_rng(n_columns)
    x, values = cancelling(rng, 21, n_columns, n_rows)
    w, bias = weight(values), weight(np.zeros(n_rows))
    op = MatMul(has_bias=True)
    together = run_one(op, x, w, bias, n_threads=1)
    assert same_bits(run_one(op, x, w, bias, n_threads=2), together)
    for start, end in ((0, 1), (5, 6), (20, 21), (3, 5), (1, 10), (4, 21)):
        for n_threads in (1, 2):
            assert same_bits(run_one(op, x[start:end], w, bias, n_threads=n_threads), together[start:end])
    mirrored = run_one(op, x[::-1], w, bias, n_threads=2)
    assert same_bits(mirrored[::-1].copy(), together)


def test_nan_in_a_token_does_not_reach_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    x, w = f32(rng.normal(size=(10, 40))), weight(rng.normal(size=(24, 40)))
    clean = run_one(MatMul(), x, w)
    x[3, 7], x[9, 0] = math.nan, math.inf
    y = run_one(MatMul(), x, w)
    assert np.isnan(y[3]).all()
    assert np.isinf(y[9]).all()
    others = [i for i in range(10) if i not in (3, 9)]
    assert same_bits(y[others], clean[others])


@pytest.mark.parametrize("has_bias", [(False, False), (True, False, True), (False, True), (True,)])
def test_a_group_is_its_parts(has_bias: tuple[bool, ...]) -> None:
    rng = np.random.default_rng(2)
    x = f32(rng.normal(size=(9, 64)))
    types = (GGMLType.Q4_0, GGMLType.F32, GGMLType.Q8_0)
    weights = [weight(rng.normal(size=(16 * (i + 1), 64)), types[i]) for i in range(len(has_bias))]
    biases = [weight(rng.normal(size=w.shape[0])) for w, has in zip(weights, has_bias, strict=True) if has]
    outputs = run_op(MatMulGroup(has_bias), x, *weights, *biases).outputs
    left = iter(biases)
    for y, w, has in zip(outputs, weights, has_bias, strict=True):
        alone = run_one(MatMul(has), x, w, *([next(left)] if has else []))
        assert same_bits(y, alone)


@pytest.mark.parametrize("kind", ActivationKind)
def test_a_gated_matmul_is_its_parts(kind: ActivationKind) -> None:
    rng = np.random.default_rng(3)
    x, gate = f32(rng.normal(size=(9, 64))), weight(rng.normal(size=(48, 64)), GGMLType.Q8_0)
    up = weight(rng.normal(size=(48, 64)))
    y = run_one(GatedMatMul(kind), x, gate, up)
    gated, plain = run_one(MatMul(), x, gate), run_one(MatMul(), x, up)
    assert same_bits(y, run_one(GatedActivation(kind), gated, plain))
    assert not np.allclose(y, run_one(GatedActivation(kind), plain, gated), atol=1e-2)


def test_integers_are_exact() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.integers(-50, 50, (12, 300)), rng.integers(-50, 50, (70, 300))
    assert_array_equal(run_one(MatMul(), f32(x), weight(w)), x @ w.T)
    assert_allclose(run_one(MatMul(), f32(x / 64), weight(w)), x @ w.T / 64, rtol=0)
