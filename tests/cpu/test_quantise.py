"""Activation quantisation: the kernel against the definition, bit for bit, and the definition against its meaning."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import (
    INTERPRETER,
    TARGETS,
    aligned,
    check_chunks_are_disjoint,
    check_close,
    near_halves,
    normal,
    run_kernel,
)
from minfer.backends.cpu.activations import QuantisedRow, dequantise_rows, quantise_rows, unpack_rows
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.quantise import ROWS_PER_CHUNK, trace_quantise
from minfer.errors import ParameterError

UNIT = 2.0**-24
# One block, every size of a group that is not eight blocks, and several of those.
WIDTHS = (32, 64, 224, 256, 832)


def kernel_records(x: NDArray[np.float32], target: str) -> NDArray[np.uint8]:
    n, width = x.shape
    records = aligned(np.zeros((n, QuantisedRow(width).stride_bytes), np.uint8))
    n_chunks = -(-n // ROWS_PER_CHUNK)
    run_kernel(trace_quantise(width, StepWord.N_TOKENS), [x, records], range(n_chunks), n_tokens=n, target=target)
    return records


def assert_same_records(got: NDArray[np.uint8], want: NDArray[np.uint8]) -> None:
    """NaNs are compared as such: their payload is the processor's."""
    both_nan = np.isnan(got.view(np.float32)) & np.isnan(want.view(np.float32))
    wrong = ~(both_nan | (got.view(np.uint32) == want.view(np.uint32)))
    assert not wrong.any(), f"words (row, word) that differ: {np.argwhere(wrong)[:5].tolist()}"


def awkward_rows(width: int) -> NDArray[np.float32]:
    """Rows with blocks of everything that could go wrong, in first and last blocks."""
    x = aligned(np.concatenate([normal(12, width), near_halves(8 * width // 32).reshape(8, width)]))
    x[1, -32:] = 0
    x[2, 5] = 1e30
    x[3, -24] = np.nan
    x[4, [0, 7, -1]] = [np.inf, -np.inf, np.inf]
    x[5] = 1e-42  # 127 / a overflows
    x[6, :32] = 0.5
    x[7, :32] = np.arange(32) * 2 - 31.0  # symmetric
    x[8, -32:] = [*np.arange(31) + 0.5, 127]  # halves, where the factor is 1
    x[9] = np.finfo(np.float32).max
    x[10] = -x[10]
    x[11, :] = np.random.default_rng(1).integers(0, 256, 4 * width, dtype=np.uint8).view(np.float32)
    return x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", WIDTHS)
def test_is_the_definition_bit_for_bit(width: int, target: str) -> None:
    x = awkward_rows(width)
    assert_same_records(kernel_records(x, target), quantise_rows(x))


def test_the_rows_tell_other_roundings_apart() -> None:
    """What the comparison of bits rests on."""
    x = awkward_rows(256)[12:]
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    q = unpack_rows(quantise_rows(x), 256).q.reshape(blocks.shape)
    scaled = blocks * (np.float32(127) / largest)
    assert np.array_equal(q, np.rint(scaled))
    by_division = np.rint(blocks / (largest / np.float32(127)))
    for wrong in (np.trunc(scaled), np.floor(scaled + np.float32(0.5)), by_division, np.rint(scaled / 127 * 126)):
        assert (q != wrong).any()


@pytest.mark.parametrize("width", [32, 96])
def test_interpreted_it_is_the_definition_too(width: int) -> None:
    x = awkward_rows(width)
    assert_same_records(kernel_records(x, INTERPRETER), quantise_rows(x))


def test_chunks_write_their_own_rows() -> None:
    n, width = 10, 96
    x = normal(n, width)
    kernel = trace_quantise(width, StepWord.N_OUTPUTS)
    records = np.full((n + 2, QuantisedRow(width).stride_bytes), 0xA5, np.uint8)
    check_chunks_are_disjoint(
        lambda chunks, outputs: run_kernel(kernel, [x, *outputs], chunks, n_outputs=n, n_tokens=99),
        [records],
        n_chunks=3,
    )
    run_kernel(kernel, [x, records], range(3), n_outputs=n)
    used = QuantisedRow(width).n16_offset + 8 * QuantisedRow(width).n_blocks
    assert (records[n:] == 0xA5).all()
    assert (records[:, used:] == 0xA5).all()


def test_values_come_back_within_half_a_step() -> None:
    x = normal(20, 128)
    records = quantise_rows(x)
    d = np.repeat(unpack_rows(records, 128).d, 32, axis=1).astype(np.float64)
    # Half a step by rounding; x * (127 / a) is off by two roundings of at most 127, and q * d by two more.
    check_close(dequantise_rows(records, 128), x.astype(np.float64), d * (0.5 + 127 * 4.01 * UNIT))


def test_parts_of_a_record() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :3] = [127.0, -63.5, 62.5]  # d is 1: halves go to the even neighbour
    x[0, 20] = -10.0
    x[0, 40] = 2.0
    parts = unpack_rows(quantise_rows(x), 64)
    assert parts.q[0, [0, 1, 2, 20, 40]].tolist() == [127, -64, 62, -10, 127]
    assert parts.d[0].tolist() == [1.0, np.float32(2) / np.float32(127)]
    assert parts.s[0].tolist() == [115.0, np.float32(127) * parts.d[0, 1]]
    assert parts.n32[0].tolist() == [-128 * 115, -128 * 127]
    assert parts.n16[0].tolist() == [-128 * 125, 128 * 10, -128 * 127, 0]


def test_what_is_not_a_number_stays_visible() -> None:
    x = np.ones((2, 64), np.float32)
    x[0, 3], x[1, 3] = np.nan, np.inf
    records = quantise_rows(x)
    parts = unpack_rows(records, 64)
    assert (parts.q[:, :32] == 0).all()
    assert (parts.n32[:, 0] == 0).all()
    assert np.isnan(dequantise_rows(records, 64)[:, :32]).all()
    assert np.isnan(parts.s[:, 0]).all()
    assert (dequantise_rows(records, 64)[:, 32:] == 1).all()


def test_layout() -> None:
    row = QuantisedRow(96)
    assert (row.n_blocks, row.scales_offset, row.sums_offset, row.n32_offset, row.n16_offset) == (3, 96, 108, 120, 132)
    assert row.stride_bytes == 192  # 156 rounded up to a multiple of 64
    assert all(QuantisedRow(32 * n).stride_bytes % 64 == 0 for n in range(1, 70))


@pytest.mark.parametrize("n_columns", [0, -32, 16, 33])
def test_rows_of_broken_blocks_are_refused(n_columns: int) -> None:
    with pytest.raises(ParameterError, match=f"multiple of 32 values, not {n_columns}"):
        QuantisedRow(n_columns)


def test_other_arrays_are_refused() -> None:
    with pytest.raises(ParameterError, match="float64"):
        quantise_rows(np.zeros((1, 32)))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"\(32,\)"):
        quantise_rows(np.zeros(32, np.float32))
    with pytest.raises(ParameterError, match=r"\(n_rows, 64\), not uint8 of shape \(1, 63\)"):
        unpack_rows(np.zeros((1, 63), np.uint8), 32)
