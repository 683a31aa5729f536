"""The matmul over float weights: right within what its partial sums allow, and the same bits on every path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, aligned, check_close, run_kernel, same_bits
from gate_reference import gate_and_bound
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import N_STEP_WORDS, StepWord
from minfer.backends.cpu.ops.matmul.floats import PARTIAL_SUMS, TILE_ROWS, FloatShape, trace_float
from minfer.backends.cpu.panels.floats import FLOAT_TYPES, pack_float, packed_float_bytes
from minfer.graph.ops import ActivationKind
from minfer.quants import GGMLType, dequantise, quantise
from minfer.simd import interpret

UNIT = 2.0**-24


@dataclass(frozen=True)
class Case:
    """A weight and activations."""

    ggml_type: GGMLType
    packed: NDArray[np.uint8]
    values: NDArray[np.float64]
    x: NDArray[np.float32]

    @property
    def shape(self) -> FloatShape:
        return FloatShape(self.ggml_type, self.x.shape[1], StepWord.N_TOKENS)

    @property
    def n_rows(self) -> int:
        return len(self.values)

    @property
    def n_panels(self) -> int:
        return -(-self.n_rows // 16)

    def product(self) -> NDArray[np.float64]:
        return self.x.astype(np.float64) @ self.values.T

    def bound(self) -> NDArray[np.float64]:
        """One rounding for each fma of a partial sum, and one for each level of the tree that adds them."""
        magnitudes = np.abs(self.x.astype(np.float64)) @ np.abs(self.values).T
        n_roundings = -(-self.x.shape[1] // PARTIAL_SUMS) + 2
        return n_roundings * UNIT * magnitudes * 1.001  # what is of second order is far less than a thousandth


def make_case(ggml_type: GGMLType, n_rows: int, n_columns: int, n_tokens: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    rows = quantise(ggml_type, rng.standard_normal((n_rows, n_columns)).astype(np.float32))
    packed = aligned_zeros(packed_float_bytes(ggml_type, n_rows, n_columns))
    pack_float(ggml_type, rows, n_columns, packed)
    x = aligned(rng.standard_normal((n_tokens, n_columns)).astype(np.float32))
    return Case(ggml_type, packed, dequantise(ggml_type, rows, n_columns).astype(np.float64), x)


def run(
    case: Case,
    n_tile_rows: int,
    *,
    panels_per_part: int = 2,
    shape: FloatShape | None = None,
    bias: NDArray[np.float32] | None = None,
    second: NDArray[np.uint8] | None = None,
    order: Iterable[int] | None = None,
    target: str = TARGETS[0],
) -> NDArray[np.float32]:
    """y as some chunks (all of them unless `order` says which) leave it, NaN where nothing was written."""
    n_parts = -(-case.n_panels // panels_per_part)
    n_tokens = len(case.x)
    y = np.full((n_tokens + 1, case.n_rows), np.nan, np.float32)
    arguments = [case.packed, second, case.x, y, bias, case.n_rows, case.n_panels, panels_per_part, n_parts]
    chunks = range(n_parts * -(-n_tokens // n_tile_rows)) if order is None else order
    kernel = kernel_of(shape or case.shape, n_tile_rows)
    run_kernel(kernel, arguments, chunks, n_tokens=n_tokens, target=target)
    assert np.isnan(y[n_tokens:]).all(), "a row that the step does not have was written"
    return y[:n_tokens]


kernel_of = cache(trace_float)


@pytest.mark.parametrize("ggml_type", FLOAT_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("n_rows", "n_columns", "n_tokens"), [(16, 64, 1), (33, 61, 6), (5, 3, 9), (40, 258, 13), (15, 1, 2)]
)
def test_both_tiles_are_right_and_give_the_same_bits(
    ggml_type: GGMLType, n_rows: int, n_columns: int, n_tokens: int
) -> None:
    case = make_case(ggml_type, n_rows, n_columns, n_tokens)
    want = run(case, 1)
    check_close(want, case.product(), case.bound())
    assert same_bits(want, run(case, TILE_ROWS))


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("ggml_type", FLOAT_TYPES, ids=lambda t: t.name)
def test_every_target_gives_the_same_bits(ggml_type: GGMLType, target: str) -> None:
    case = make_case(ggml_type, 33, 61, 6)
    for n_tile_rows in (1, TILE_ROWS):
        assert same_bits(run(case, 1), run(case, n_tile_rows, target=target))


@pytest.mark.parametrize("n_tokens", [*range(1, 14), 25])
def test_tiles_parts_and_the_order_of_chunks_do_not_matter(n_tokens: int) -> None:
    case = make_case(GGMLType.F16, 90, 37, n_tokens)
    want = run(case, 1)
    rng = np.random.default_rng(n_tokens)
    for n_tile_rows in (3, TILE_ROWS, 8):
        for panels_per_part in (1, 4, 6):
            n_chunks = -(-6 // panels_per_part) * -(-n_tokens // n_tile_rows)
            order = rng.permutation(n_chunks).tolist()
            assert same_bits(want, run(case, n_tile_rows, panels_per_part=panels_per_part, order=order))


def test_chunks_write_what_no_other_writes() -> None:
    case = make_case(GGMLType.BF16, 40, 8, 6)
    n_writers = np.zeros((6, 40), int)
    for chunk in range(2 * 2):
        n_writers += ~np.isnan(run(case, TILE_ROWS, order=[chunk]))
    assert (n_writers == 1).all()


@pytest.mark.parametrize("n_tile_rows", [1, TILE_ROWS])
def test_bias_and_gate(n_tile_rows: int) -> None:
    case, other = make_case(GGMLType.F16, 33, 64, 7), make_case(GGMLType.F16, 33, 64, 7, seed=9)
    bias = aligned(np.random.default_rng(1).standard_normal(33).astype(np.float32))
    plain, up = run(case, 1), run(replace(other, x=case.x), 1)
    assert same_bits(run(case, n_tile_rows, shape=replace(case.shape, has_bias=True), bias=bias), plain + bias)
    for kind in ActivationKind:
        gated = run(case, n_tile_rows, shape=replace(case.shape, gate=kind), second=other.packed)
        check_close(gated, *gate_and_bound(kind, plain, up))


@pytest.mark.parametrize("ggml_type", FLOAT_TYPES, ids=lambda t: t.name)
def test_the_interpreter_gives_the_same_bits(ggml_type: GGMLType) -> None:
    case = make_case(ggml_type, 17, 7, 3)
    y = np.full((3, 17), np.nan, np.float32)
    arrays = [case.packed, case.x, y]
    block = np.array([case.packed.ctypes.data, 0, case.x.ctypes.data, y.ctypes.data, 0, 17, 2, 3, 1], np.int64)
    step = np.zeros(N_STEP_WORDS, np.int64)
    step[StepWord.N_TOKENS] = 3
    # One tile, and one part, which would have room for more panels than there are.
    interpret(kernel_of(case.shape, TILE_ROWS), block, step, 0, aligned_zeros(64), buffers=arrays)
    assert same_bits(y, run(case, TILE_ROWS))


@pytest.mark.parametrize("n_tile_rows", [1, TILE_ROWS])
def test_a_column_belongs_to_the_partial_sum_of_its_remainder(n_tile_rows: int) -> None:
    """2^24 + 1 is 2^24 in float32 and -2^24 + 1 is exact: what is left tells which sum each column was added to."""
    for small, want in ((4, 0.0), (5, 1.0), (6, 0.0), (9, 1.0)):
        x = np.zeros((1, 10), np.float32)
        x[0, [0, 1, small]] = 2.0**24, -(2.0**24), 1
        case = make_case(GGMLType.F32, 1, 10, 1)
        pack_float(GGMLType.F32, quantise(GGMLType.F32, np.ones((1, 10), np.float32)), 10, case.packed)
        assert run(replace(case, x=aligned(x)), n_tile_rows)[0, 0] == want, small


def test_a_column_left_out_is_noticed() -> None:
    case = make_case(GGMLType.F32, 16, 65, 2)
    shorter = replace(case, x=aligned(case.x * (np.arange(65) != 64)))
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(run(shorter, 1), case.product(), case.bound())


def test_rounding_the_products_is_noticed() -> None:
    """The bound is tight enough to tell sums of float16 from those of float32."""
    case = make_case(GGMLType.F16, 16, 256, 2)
    rounded = (case.x[:, None, :] * case.values[None]).astype(np.float16).astype(np.float64).sum(axis=2)
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(rounded.astype(np.float32), case.product(), case.bound())


@pytest.mark.parametrize("ggml_type", FLOAT_TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("n_rows", [1, 16, 17])
def test_panels_hold_the_rows_of_the_file(ggml_type: GGMLType, n_rows: int) -> None:
    n_columns = 5
    values = np.random.default_rng(n_rows).standard_normal((n_rows, n_columns)).astype(np.float32)
    rows = quantise(ggml_type, values)
    packed = aligned_zeros(packed_float_bytes(ggml_type, n_rows, n_columns))
    packed[:] = 0xFF
    pack_float(ggml_type, rows, n_columns, packed)
    width = rows.shape[1] // n_columns
    elements = packed.reshape(-1, n_columns, 16, width).transpose(0, 2, 1, 3).reshape(-1, n_columns * width)
    assert same_bits(elements[:n_rows], rows)
    assert not elements[n_rows:].any()
