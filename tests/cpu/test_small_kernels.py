"""Norms, quantisation, RoPE, the KV store, element-wise ops and row selection, against the reference backend's
definitions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, aligned, check_close, run_kernel, same_bits
from minfer.backends.cpu.activations import QuantisedRow, quantise_rows
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.kernels.elementwise import Elementwise, trace_elementwise
from minfer.backends.cpu.kernels.kv_rows import cell_bytes
from minfer.backends.cpu.kernels.kv_store import StoreShape, trace_kv_store
from minfer.backends.cpu.kernels.quantise import trace_quantise
from minfer.backends.cpu.kernels.rms_norm import NormShape, trace_rms_norm
from minfer.backends.cpu.kernels.rope import RopeShape, rope_table, trace_rope
from minfer.backends.cpu.kernels.select_rows import trace_select_rows
from minfer.backends.reference.activation import activation
from minfer.backends.reference.rope import rope
from minfer.graph.ops import Activation, ActivationKind, Rope, RopeStyle
from minfer.quants import GGMLType, quantise

TOKENS, OUTPUTS = StepWord.N_TOKENS, StepWord.N_OUTPUTS
UNIT = 2.0**-24


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return aligned(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def chunks(n_rows: int, rows_per_chunk: int = 4) -> range:
    return range(-(-n_rows // rows_per_chunk))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("width", "n_groups"), [(64, 1), (576, 1), (17, 1), (5, 3), (16, 4)])
def test_rms_norm(width: int, n_groups: int, target: str) -> None:
    n, eps = 5, 1e-5
    x, weight = normal(n, n_groups, width), normal(width, seed=1)
    y = np.full((n + 1, n_groups, width), 7.0, np.float32)
    kernel = trace_rms_norm(NormShape(width, eps, TOKENS, n_groups))
    run_kernel(kernel, [x, None, weight, None, y], chunks(n), n_tokens=n, target=target)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps) * weight
    # The scale is rounded once, and each of two products once.
    check_close(y[:n], want, 3 * UNIT * np.abs(want))
    assert (y[n] == 7.0).all()


def test_rms_norm_of_1_2_3_4() -> None:
    x, y = aligned(np.array([[1, 2, 3, 4]], np.float32)), np.zeros((1, 4), np.float32)
    run_kernel(trace_rms_norm(NormShape(4, 0.0, TOKENS)), [x, None, np.ones(4, np.float32), None, y], [0])
    assert abs(1 / np.sqrt(7.5) - 0.365148) < 5e-7
    np.testing.assert_allclose(y[0], np.array([1, 2, 3, 4]) / np.sqrt(7.5), rtol=2e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_add_rms_norm_with_records_in_place(target: str) -> None:
    n, width = 6, 96
    a, b, weight = normal(n, width), normal(n, width, seed=1), normal(width, seed=2)
    total = a + b
    y, records = np.empty_like(a), np.zeros((n, QuantisedRow(width).stride_bytes), np.uint8)
    plain = np.empty_like(a)
    run_kernel(trace_rms_norm(NormShape(width, 1e-6, OUTPUTS)), [total, 0, weight, 0, plain], chunks(n), n_outputs=n)
    shape = NormShape(width, 1e-6, OUTPUTS, adds=True, quantised=True)
    run_kernel(trace_rms_norm(shape), [a, b, weight, a, y, records], chunks(n), n_outputs=n, target=target)
    assert same_bits(a, total)
    assert same_bits(y, plain)
    assert same_bits(records, quantise_rows(y))


@pytest.mark.parametrize("target", TARGETS)
def test_quantisation_is_the_definition_bit_for_bit(target: str) -> None:
    x = normal(9, 128)
    x[1, :32] = 0
    x[2, 5] = 1e30
    x[3, 40] = np.nan
    x[4, 70] = np.inf
    x[5, :64] = 1e-42
    x[6, :32] = 0.5
    records = np.zeros((9, QuantisedRow(128).stride_bytes), np.uint8)
    run_kernel(trace_quantise(128, TOKENS), [x, records], chunks(9), n_tokens=9, target=target)
    want = quantise_rows(x)
    # NaNs are compared as such: their payload is the processor's.
    as_floats = records.view(np.float32), want.view(np.float32)
    both_nan = np.isnan(as_floats[0]) & np.isnan(as_floats[1])
    assert (both_nan | (records.view(np.uint32) == want.view(np.uint32))).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("style", RopeStyle)
@pytest.mark.parametrize(("head_dim", "n_rot"), [(64, 64), (16, 8), (24, 24), (10, 6)])
def test_rope(style: RopeStyle, head_dim: int, n_rot: int, target: str) -> None:
    positions = np.array([0, 1, 17, 100_000], np.int32)
    x = normal(4, 3, head_dim)
    op = Rope(style, tuple(10_000.0 ** (-2 * i / n_rot) for i in range(n_rot // 2)), 1.25)
    cos, sin = (np.zeros((4, n_rot // 2), np.float32) for _ in range(2))
    rope_table(op.frequencies, op.magnitude, positions, cos, sin)
    want = rope(op, x, positions)
    y = x.copy()
    run_kernel(trace_rope(RopeShape(style, 3, head_dim, n_rot)), [y, y, cos, sin], range(4), n_tokens=4, target=target)
    # cos and sin are rounded once, each product and the sum once more.
    largest = np.abs(x).max(axis=-1, keepdims=True) * 1.25
    check_close(y, want.astype(np.float64), 4 * 2 * UNIT * largest)
    other = next(each for each in RopeStyle if each is not style)
    wrong = x.copy()
    run_kernel(trace_rope(RopeShape(other, 3, head_dim, n_rot)), [wrong, wrong, cos, sin], range(4), n_tokens=4)
    with pytest.raises(AssertionError):
        check_close(wrong, want.astype(np.float64), 4 * 2 * UNIT * largest)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0], ids=lambda t: t.name)
def test_kv_store_writes_what_the_definition_quantises(ggml_type: GGMLType, target: str) -> None:
    n_heads, head_dim, value_dim = 3, 64, 32
    k, v = normal(4, n_heads, head_dim), normal(4, n_heads, value_dim, seed=1)
    k[0, 0, :32] = 0
    k[1, 1, :32] = np.tile([1.0, -1.0, 0.5, -0.5], 8)  # halves: rounded away from zero
    cells = np.array([5, 0, 2, 7], np.int32)
    regions = [np.full((9, cell_bytes(n_heads, w, ggml_type)), 0xAB, np.uint8) for w in (head_dim, value_dim)]
    kernel = trace_kv_store(StoreShape(n_heads, head_dim, value_dim, ggml_type, ggml_type))
    run_kernel(kernel, [k, v, *regions], range(4), n_tokens=4, inputs={StepWord.CELLS: cells}, target=target)
    for rows, region in zip((k, v), regions, strict=True):
        assert same_bits(region[cells], quantise(ggml_type, rows).reshape(4, -1))
        assert (region[[1, 3, 4, 6, 8]] == 0xAB).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [16, 35])
def test_elementwise(width: int, target: str) -> None:
    a, b = normal(6, width), normal(6, width, seed=1)
    a[0, 0], a[0, 1] = 100.0, -100.0
    for kind, want in ((Elementwise.ADD, a + b), (Elementwise.MULTIPLY, a * b)):
        y = a.copy()
        run_kernel(trace_elementwise(kind, None, width, TOKENS), [y, b, y], chunks(6), n_tokens=6, target=target)
        assert same_bits(y, want)
    for of in ActivationKind:
        with np.errstate(over="ignore"):
            exact = activation(Activation(of), a).astype(np.float64)
        y = np.empty_like(a)
        kernel = trace_elementwise(Elementwise.ACTIVATION, of, width, TOKENS)
        run_kernel(kernel, [a, a, y], chunks(6), n_tokens=6, target=target)
        # exp within 2 units, the quotient and what surrounds it 4; GELU's argument magnifies its own error by its size.
        bound = 24 * UNIT * (np.abs(exact) + np.abs(a) * 0.05) + 1e-30
        check_close(y, exact, bound)
        gated = np.empty_like(a)
        kernel = trace_elementwise(Elementwise.GATED, of, width, TOKENS)
        run_kernel(kernel, [a, b, gated], chunks(6), n_tokens=6, target=target)
        assert same_bits(gated, y * b)


@pytest.mark.parametrize("width", [16, 35])
def test_select_rows(width: int) -> None:
    x, y = normal(5, width), np.full((3, width), 7.0, np.float32)
    rows = np.array([4, 0], np.int32)
    inputs = {StepWord.OUTPUT_ROWS: rows}
    run_kernel(trace_select_rows(width), [x, y], range(2), n_tokens=5, n_outputs=2, inputs=inputs)
    assert same_bits(y[:2], x[rows])
    assert (y[2] == 7.0).all()
