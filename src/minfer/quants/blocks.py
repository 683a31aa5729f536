"""What every block format shares: how packed blocks are described, taken apart, and turned into float32.

Every block format of ggml stores small integers in groups, and a scale (and for some an offset) for each group:

    value[b, g, i] = scales[b, g] * quants[b, g, i] + offsets[b, g]

so a format is defined by its layout (a NumPy structured dtype, byte for byte) and by one function from blocks to these
three arrays. Bit fields are drawn with bit 0 as the least significant; all multi-byte numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError

Blocks: TypeAlias = NDArray[np.void]
"""Packed blocks, shape (n_blocks,), of the structured dtype of their format."""


@dataclass(frozen=True)
class UnpackedBlocks:
    """Blocks taken apart without loss: `scales * quants + offsets`, in float32 and in that order, are the values.

    Attributes:
        quants: int8, shape (n_blocks, n_groups, group_size), the values in the order of the row.
        scales: float32, shape (n_blocks, n_groups).
        offsets: float32, shape (n_blocks, n_groups); `None` for formats that have none.
    """

    quants: NDArray[np.int8]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class BlockFormat:
    """A format of integers in scaled groups.

    Attributes:
        layout: structured dtype of one block.
        unpack: blocks, shape (n_blocks,), to their parts.
        encode: float32 values, shape (n_blocks, n_values), to blocks, shape (n_blocks,); `None` where not defined.
    """

    layout: np.dtype[np.void]
    unpack: Callable[[Blocks], UnpackedBlocks]
    encode: Callable[[NDArray[np.float32]], Blocks] | None = None

    def decode(self, blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Writes the values of `blocks`, shape (n_blocks,), into the C-contiguous `out`, shape (n_blocks, n_values)."""
        parts = self.unpack(blocks)
        values = out.reshape(parts.quants.shape)
        np.copyto(values, parts.quants)
        values *= parts.scales[..., None]
        if parts.offsets is not None:
            values += parts.offsets[..., None]


def split_bits(packed: NDArray[np.uint8], n_bits: int) -> NDArray[np.uint8]:
    """Splits bytes, shape (..., n), into fields of 1, 2 or 4 bits, shape (..., 8 / n_bits, n), lowest bits first."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    fields = packed[..., None, :] >> shifts
    fields &= np.uint8((1 << n_bits) - 1)
    return fields


def join_bits(fields: NDArray[np.uint8], n_bits: int) -> NDArray[np.uint8]:
    """The inverse of `split_bits`: fields, shape (..., 8 / n_bits, n), into bytes, shape (..., n)."""
    shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
    joined: NDArray[np.uint8] = np.bitwise_or.reduce(fields << shifts, axis=-2)
    return joined


def widen(scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """Float16 block scales, shape (n_blocks,), as a float32 column, shape (n_blocks, 1)."""
    return scales.astype(np.float32)[:, None]


def to_float16(scales: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounds block scales to the float16 that a block stores.

    Raises:
        ParameterError: a scale is too large for float16, so the block would not decode to anything near its values.
    """
    rounded = scales.astype(np.float16)
    finite = np.isfinite(rounded)
    if not finite.all():
        worst = scales[~finite].flat[0]
        raise ParameterError(
            f"the values are too large for this type: a block needs the scale or offset {worst}, "
            f"and float16 ends at {np.finfo(np.float16).max}"
        )
    return rounded


def reciprocal_or_zero(steps: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / step; 0 where that is not finite, that is for steps (0, subnormal) that every stored scale rounds to 0."""
    inverse = np.divide(np.float32(1), steps, out=np.zeros_like(steps), where=steps != 0)
    inverse[~np.isfinite(inverse)] = 0
    return inverse
