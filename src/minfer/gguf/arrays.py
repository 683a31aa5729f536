"""Metadata arrays that stay bytes of the mapped file until an element is asked for."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from minfer.errors import GGUFError, ParameterError
from minfer.gguf.scan import ARRAY_HEADER_BYTES, Cursor, array_header, decode_text, element_starts
from minfer.gguf.values import FIXED_FORMATS, GGUFValueType, Scalar

_LENGTH_BYTES = 8  # the 64-bit length in front of a string


class GGUFArray(Sequence["ArrayValue"]):
    """A metadata array, read from the mapped file when it is touched.

    Opening a file has checked that every element lies within it. What is in an element is checked here, on the way out:
    a string that is not UTF-8, or a bool that is neither 0 nor 1, raises `GGUFError` with its offset.

    The first look at an element of an array of strings or of arrays finds out where all of them start (8 bytes each);
    from then on, and always for numbers, indexing is O(1). The array keeps the mapping alive.
    """

    __slots__ = ("_cursor", "_field", "_n", "_start", "_starts", "element_type")

    element_type: GGUFValueType

    def __init__(self, cursor: Cursor, field: str) -> None:
        """Reads the array's header at the cursor, in a file whose bytes have been checked before."""
        self.element_type, self._n = array_header(cursor, field)
        self._cursor = cursor
        self._start = cursor.position
        self._field = field
        self._starts: array[int] | None = None

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<GGUFArray of {self._n} {self.element_type.name}>"

    @overload
    def __getitem__(self, index: int) -> ArrayValue: ...
    @overload
    def __getitem__(self, index: slice) -> list[ArrayValue]: ...
    def __getitem__(self, index: int | slice) -> ArrayValue | list[ArrayValue]:
        """One element, or for a slice a list of elements."""
        if isinstance(index, slice):
            return [self._element(i) for i in range(*index.indices(self._n))]
        position = operator.index(index)
        if not -self._n <= position < self._n:
            raise IndexError(f"index {position} is out of range for an array of {self._n}")
        return self._element(position % self._n)

    def __iter__(self) -> Iterator[ArrayValue]:
        if self.element_type is GGUFValueType.ARRAY:
            return map(self._element, range(self._n))
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        """All elements as Python values; arrays in an array become lists too."""
        if self.element_type is GGUFValueType.ARRAY:
            return [self._nested(index).tolist() for index in range(self._n)]
        if self.element_type is GGUFValueType.STRING:
            raw = self.bytes_list()
            try:
                return [item.decode() for item in raw]
            except UnicodeDecodeError:
                return [self._decode(index, item) for index, item in enumerate(raw)]  # raises at the one
        values: list[Any] = self.to_numpy().tolist()
        return values

    def bytes_list(self) -> list[bytes]:
        """All strings as their bytes, for vocabularies whose tokens need not be UTF-8.

        Raises:
            ParameterError: if the elements are no strings.
        """
        if self.element_type is not GGUFValueType.STRING:
            raise ParameterError(f"{self._field} is an array of {self.element_type.name}, not of STRING")
        starts = self._element_starts()
        base = starts[0]
        raw = bytes(self._cursor.data[base : starts[-1]])
        return [raw[start - base + _LENGTH_BYTES : end - base] for start, end in pairwise(starts)]

    def to_numpy(self) -> NDArray[Any]:
        """The numbers (or bools), shape (len,), in the file's own width: a read-only view of the mapped file.

        The view may be unaligned, as metadata is: copy it before giving it to native code.

        Raises:
            ParameterError: if the elements are strings or arrays.
            GGUFError: if the elements are bools and one is neither 0 nor 1.
        """
        format_ = FIXED_FORMATS.get(self.element_type)
        if format_ is None:
            raise ParameterError(f"{self._field} is an array of {self.element_type.name}, which has no NumPy type")
        values = np.frombuffer(self._cursor.data, format_.dtype, self._n, self._start)
        return self._as_bools(values) if self.element_type is GGUFValueType.BOOL else values

    def encoded(self) -> memoryview:
        """The array's bytes as they are in the file: element type, length, elements."""
        format_ = FIXED_FORMATS.get(self.element_type)
        end = self._element_starts()[-1] if format_ is None else self._start + self._n * format_.n_bytes
        return self._cursor.data[self._start - ARRAY_HEADER_BYTES : end]

    def _element(self, index: int) -> ArrayValue:
        if self.element_type is GGUFValueType.ARRAY:
            return self._nested(index)
        if self.element_type is GGUFValueType.STRING:
            starts = self._element_starts()
            return self._decode(index, self._cursor.data[starts[index] + _LENGTH_BYTES : starts[index + 1]])
        offset = self._start + index * FIXED_FORMATS[self.element_type].n_bytes
        return read_scalar(Cursor(self._cursor.data, self._cursor.path, offset), self.element_type, self._at(index))

    def _nested(self, index: int) -> GGUFArray:
        start = self._element_starts()[index]
        return GGUFArray(Cursor(self._cursor.data, self._cursor.path, start), self._at(index))

    def _decode(self, index: int, data: bytes | memoryview) -> str:
        return decode_text(data, self._cursor, self._at(index), self._element_starts()[index])

    def _at(self, index: int) -> str:
        return f"{self._field}[{index}]"

    def _element_starts(self) -> array[int]:
        if self._starts is None:
            cursor = Cursor(self._cursor.data, self._cursor.path, self._start)
            self._starts = element_starts(cursor, self.element_type, self._n, self._field)
        return self._starts

    def _as_bools(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        if values.max(initial=0) > 1:
            index = int(np.argmax(values > 1))
            raise _bool_error(self._cursor, int(values[index]), self._at(index), self._start + index)
        return values.view(np.bool_)


def read_scalar(cursor: Cursor, value_type: GGUFValueType, field: str) -> Scalar:
    """Reads a value of any type but ARRAY."""
    if value_type is GGUFValueType.STRING:
        return cursor.text(field)
    format_ = FIXED_FORMATS[value_type]
    offset = cursor.skip(format_.n_bytes, field)
    value: int | float = format_.packer.unpack_from(cursor.data, offset)[0]
    if value_type is GGUFValueType.BOOL:
        if value > 1:
            raise _bool_error(cursor, value, field, offset)
        return bool(value)
    return value


def _bool_error(cursor: Cursor, value: float, field: str, offset: int) -> GGUFError:
    return cursor.error(f"a bool must be 0 or 1, not {value}", field, offset)


ArrayValue: TypeAlias = Scalar | GGUFArray
