"""How a row of activations is quantised for the integer matmuls: one record of bytes a row, defined here in NumPy.

A row of K values (K a multiple of 32) becomes a record, and records stand one after the other, `stride_bytes` apart:

    q     i8 [K]        the values as integers, in the order of the row
    d     f32[K / 32]   scales: value = d * q
    s     f32[K / 32]   d * (sum of the block's q): what an offset of the weights is multiplied by
    n32   i32[K / 32]   -128 * (sum of the block's q): takes back the 128 that makes signed weights u8
    n16   i32[K / 16]   the same for each half of a block, for weights with a scale every 16 values

Per block of 32 values x, in float32 and in this order:

    a = max |x|      d = a / 127      q = x * (127 / a), rounded to the nearest integer, halves to even
    sum = the exact sum of q          s = sum * d

q is 0 where x * (127 / a) is not finite. That is so in a block of zeros, in one whose largest magnitude is below
127 / FLT_MAX, and in one that holds NaN or an infinity; there d is NaN or infinite too, so that every product with the
block is NaN: what is not a number stays visible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError

BLOCK_VALUES = 32
"""Values that share a scale."""
ALIGNMENT_BYTES = 64
"""Records start at multiples of it, when the first one does."""

_LARGEST_Q = np.float32(127)
_MAGNITUDE_BITS = np.int32(0x7FFFFFFF)


@dataclass(frozen=True)
class QuantisedRow:
    """Where the parts of a record lie, in bytes from its start.

    Raises:
        ParameterError: `n_columns` is not a positive multiple of 32.
    """

    n_columns: int

    def __post_init__(self) -> None:
        if self.n_columns <= 0 or self.n_columns % BLOCK_VALUES:
            raise ParameterError(
                f"a row to quantise has a positive multiple of {BLOCK_VALUES} values, not {self.n_columns}"
            )

    @property
    def n_blocks(self) -> int:
        return self.n_columns // BLOCK_VALUES

    @property
    def scales_offset(self) -> int:
        return self.n_columns

    @property
    def sums_offset(self) -> int:
        return self.scales_offset + 4 * self.n_blocks

    @property
    def n32_offset(self) -> int:
        return self.sums_offset + 4 * self.n_blocks

    @property
    def n16_offset(self) -> int:
        return self.n32_offset + 4 * self.n_blocks

    @property
    def stride_bytes(self) -> int:
        """From one record to the next: a multiple of 64. What lies behind n16 is nobody's."""
        n_bytes = self.n16_offset + 8 * self.n_blocks
        return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class UnpackedRows:
    """The parts of records, as views of them.

    Attributes:
        q: int8, shape (n_rows, n_columns).
        d: float32, shape (n_rows, n_columns / 32).
        s: float32, shape (n_rows, n_columns / 32).
        n32: int32, shape (n_rows, n_columns / 32).
        n16: int32, shape (n_rows, n_columns / 16).
    """

    q: NDArray[np.int8]
    d: NDArray[np.float32]
    s: NDArray[np.float32]
    n32: NDArray[np.int32]
    n16: NDArray[np.int32]


def quantise_rows(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The records of rows, shape (n_rows, n_columns): uint8, shape (n_rows, stride_bytes), zeros behind n16.

    Raises:
        ParameterError: `x` is not float32 with two dimensions, or the rows are no whole number of blocks.
    """
    if x.dtype != np.float32 or x.ndim != 2:
        raise ParameterError(f"rows to quantise are float32 with two dimensions, not {x.dtype} of shape {x.shape}")
    row = QuantisedRow(x.shape[1])
    records = np.zeros((len(x), row.stride_bytes), np.uint8)
    parts = unpack_rows(records, row.n_columns)
    blocks = np.ascontiguousarray(x).reshape(len(x), row.n_blocks, BLOCK_VALUES)
    # The bits of magnitudes order as the magnitudes do, with NaN above all: the maximum depends on no order.
    largest = (blocks.view(np.int32) & _MAGNITUDE_BITS).max(axis=2).view(np.float32)
    with np.errstate(all="ignore"):
        scaled = blocks * (_LARGEST_Q / largest)[:, :, None]
        q = np.rint(np.where(np.isfinite(scaled), scaled, np.float32(0))).astype(np.int32)
        halves = q.reshape(len(x), -1, BLOCK_VALUES // 2).sum(axis=2, dtype=np.int32)
        sums = q.sum(axis=2, dtype=np.int32)
        parts.q[:] = q.reshape(x.shape)
        parts.d[:] = largest / _LARGEST_Q
        parts.s[:] = sums.astype(np.float32) * parts.d
        parts.n32[:] = -128 * sums
        parts.n16[:] = -128 * halves
    return records


def unpack_rows(records: NDArray[np.uint8], n_columns: int) -> UnpackedRows:
    """The parts of records, shape (n_rows, stride_bytes), of rows of `n_columns` values; writable where they are.

    Raises:
        ParameterError: the records are not those of rows of that length.
    """
    row = QuantisedRow(n_columns)
    if records.dtype != np.uint8 or records.ndim != 2 or records.shape[1] != row.stride_bytes:
        raise ParameterError(
            f"records of {n_columns} values are uint8 of shape (n_rows, {row.stride_bytes}), "
            f"not {records.dtype} of shape {records.shape}"
        )
    scales, sums, n32, n16 = row.scales_offset, row.sums_offset, row.n32_offset, row.n16_offset
    return UnpackedRows(
        records[:, :scales].view(np.int8),
        records[:, scales:sums].view(np.float32),
        records[:, sums:n32].view(np.float32),
        records[:, n32:n16].view(np.int32),
        records[:, n16 : n16 + 8 * row.n_blocks].view(np.int32),
    )


def dequantise_rows(records: NDArray[np.uint8], n_columns: int) -> NDArray[np.float32]:
    """The values d * q that records stand for, float32, shape (n_rows, n_columns).

    Raises:
        ParameterError: as `unpack_rows`.
    """
    parts = unpack_rows(records, n_columns)
    with np.errstate(invalid="ignore"):
        return parts.q.astype(np.float32) * np.repeat(parts.d, BLOCK_VALUES, axis=1)
