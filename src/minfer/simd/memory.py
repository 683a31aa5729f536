"""The interpreter's memory: NumPy arrays at their real addresses, every access checked for bounds and alignment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.simd.evaluate import UndefinedError


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """The bytes of an array."""

    content: NDArray[np.uint8]
    address: int

    @property
    def end(self) -> int:
        return self.address + self.content.nbytes


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address, and the buffer it was made from: only that may be accessed, however far the address moves."""

    address: int
    buffer: Buffer | None


class Memory:
    """The arrays that a kernel may touch."""

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        self._buffers = [_buffer(array) for array in arrays]

    def pointer_to(self, array: NDArray[Any]) -> Pointer:
        """A pointer to the start of an array, which joins the memory."""
        buffer = _buffer(array)
        self._buffers.append(buffer)
        return Pointer(buffer.address, buffer)

    def pointer_at(self, address: int) -> Pointer:
        """A pointer made of an address that lay in memory; without a buffer where none is there."""
        for buffer in self._buffers:
            if buffer.address <= address < buffer.end:
                return Pointer(address, buffer)
        return Pointer(address, None)


def view(pointer: Pointer, n_bytes: int, align: int, *, for_write: bool) -> NDArray[np.uint8]:
    """The bytes at a pointer, writable through the view.

    Raises:
        UndefinedError: out of the bounds of the pointer's buffer, misaligned, or read-only and to be written.
    """
    buffer = pointer.buffer
    if buffer is None:
        raise UndefinedError(f"no buffer lies at the address {pointer.address:#x}")
    start = pointer.address - buffer.address
    if start < 0 or start + n_bytes > buffer.content.nbytes:
        raise UndefinedError(
            f"the bytes {start} to {start + n_bytes} are out of a buffer of {buffer.content.nbytes} bytes"
        )
    if pointer.address % align:
        raise UndefinedError(f"the address {pointer.address:#x} is no multiple of {align}, as the access promises")
    if for_write and not buffer.content.flags.writeable:
        raise UndefinedError("the buffer is read-only")
    return buffer.content[start : start + n_bytes]


def _buffer(array: NDArray[Any]) -> Buffer:
    if not array.flags.c_contiguous:
        raise ValueError("the interpreter's arrays must be contiguous")
    return Buffer(array.reshape(-1).view(np.uint8), int(array.ctypes.data))
