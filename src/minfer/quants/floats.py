"""Plain numbers: one value an item, no blocks.

    type  bytes  value
    F32     4    IEEE 754 binary32
    F16     2    IEEE 754 binary16: sign 15, exponent 14-10 (bias 15), fraction 9-0
    BF16    2    the upper half of a binary32: sign 15, exponent 14-7 (bias 127), fraction 6-0
    F64     8    IEEE 754 binary64; read as the nearest float32 (beyond its range: infinity)
    I8      1    two's complement
    I16     2    two's complement

All are little-endian. I32 and I64 are not dequantised: float32 does not hold all their values. Source: the ggml types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError

F32 = np.dtype("<f4")
F16 = np.dtype("<f2")
BF16 = np.dtype("<u2")
"""NumPy has no bfloat16, so its bits are handled as an integer."""
F64 = np.dtype("<f8")
I8 = np.dtype("i1")
I16 = np.dtype("<i2")


@dataclass(frozen=True)
class PlainFormat:
    """A format whose items are single numbers.

    Attributes:
        layout: dtype of one item.
        read: writes items, shape (n, 1), as float32 into an array of the same shape.
        encode: float32 values, shape (n, 1), to items of the same shape; `None` where not defined.
    """

    layout: np.dtype[Any]
    read: Callable[[NDArray[Any], NDArray[np.float32]], None]
    encode: Callable[[NDArray[np.float32]], NDArray[Any]] | None = None

    def decode(self, items: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Writes the values of `items`, shape (n,), into `out`, shape (n, 1)."""
        self.read(items[:, None], out)


def read_numbers(items: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Converts numbers that NumPy knows."""
    np.copyto(out, items, casting="same_kind")


def read_bf16(items: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
    """Moves the 16 bits into the upper half of a float32; every pattern, NaN included, keeps its bits."""
    bits = out.view(np.uint32)
    np.copyto(bits, items)
    bits <<= np.uint32(16)


def encode_f32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.astype(F32, copy=False)


def encode_f16(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Rounds to the nearest float16, ties to even.

    Raises:
        ParameterError: a value rounds to infinity.
    """
    return _refuse_overflow("F16", values, values.astype(F16))


def encode_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to the nearest bfloat16, ties to even.

    Raises:
        ParameterError: a value rounds to infinity.
    """
    bits = values.view(np.uint32)
    ties_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = (bits + ties_to_even) & np.uint32(0xFFFF_0000)
    _refuse_overflow("BF16", values, rounded.view(np.float32))
    return (rounded >> np.uint32(16)).astype(BF16)


def _refuse_overflow(
    name: str, values: NDArray[np.float32], rounded: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    finite = np.isfinite(rounded)
    if not finite.all():
        raise ParameterError(f"the value {values[~finite][0]} is beyond the range of {name}; scale the values down")
    return rounded
