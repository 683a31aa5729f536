"""Walks the bytes of a GGUF file, and checks each length against the bytes that remain before it is believed.

Everything is computed in Python's ints, which can't overflow. Nothing is allocated in proportion to what a file claims.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

from minfer.errors import GGUFError
from minfer.gguf.values import FIXED_FORMATS, GGUFValueType

MAX_ARRAY_DEPTH = 8
"""How deep arrays may nest: the format sets no limit, files in use have depth 1, and recursion needs one."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
ARRAY_HEADER_BYTES = _U32.size + _U64.size
_MAX_SHOWN = 80


def shown(name: object) -> str:
    """A key, name or value as messages show it: quoted, and shortened, since what a file holds may be anything."""
    text = repr(name)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


@dataclass(slots=True)
class Cursor:
    """A position in a file's bytes. `field` arguments name what is being read, for the error that it may give."""

    data: memoryview
    path: str
    position: int = 0

    @property
    def n_remaining(self) -> int:
        return len(self.data) - self.position

    def error(self, message: str, field: str, offset: int | None = None) -> GGUFError:
        """An error about the byte at `offset`; without it, about the byte that would be read next."""
        return GGUFError(message, field=field, offset=self.position if offset is None else offset, path=self.path)

    def skip(self, n_bytes: int, field: str) -> int:
        """Steps over bytes that must be there, and returns where they start."""
        start = self.position
        if n_bytes > self.n_remaining:
            raise self.error(f"needs {n_bytes} bytes, but the file ends after {self.n_remaining}", field)
        self.position = start + n_bytes
        return start

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self.data, self.skip(_U32.size, field))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self.data, self.skip(_U64.size, field))[0]
        return value

    def count(self, what: str, min_item_bytes: int, field: str) -> int:
        """Reads a 64-bit count of items that take at least `min_item_bytes` each, later in the file."""
        offset = self.position
        n_items = self.u64(field)
        if n_items * min_item_bytes > self.n_remaining:
            raise self.error(
                f"{n_items} {what} take at least {n_items * min_item_bytes} bytes, "
                f"but only {self.n_remaining} remain in the file",
                field,
                offset,
            )
        return n_items

    def string(self, field: str, max_bytes: int | None = None) -> memoryview:
        """Reads a string: its length in 64 bits, then its bytes."""
        offset = self.position
        n_bytes = self.u64(field)
        if max_bytes is not None and n_bytes > max_bytes:
            raise self.error(f"{n_bytes} bytes long, where the format allows {max_bytes}", field, offset)
        if n_bytes > self.n_remaining:
            raise self.error(
                f"a string of {n_bytes} bytes, but only {self.n_remaining} remain in the file", field, offset
            )
        start = self.skip(n_bytes, field)
        return self.data[start : self.position]

    def text(self, field: str, max_bytes: int | None = None) -> str:
        """Reads a string that must be UTF-8."""
        offset = self.position
        return decode_text(self.string(field, max_bytes), self, field, offset)

    def value_type(self, field: str) -> GGUFValueType:
        offset = self.position
        number = self.u32(field)
        try:
            return GGUFValueType(number)
        except ValueError:
            known = f"{min(GGUFValueType)} to {max(GGUFValueType)}"
            raise self.error(f"{number} is not one of the format's value types, {known}", field, offset) from None


def decode_text(data: bytes | memoryview, cursor: Cursor, field: str, offset: int) -> str:
    """Decodes UTF-8; `field` and `offset` say where the string lies, for the error."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise cursor.error(
            f"not valid UTF-8: {error.reason} {error.start} bytes into the string", field, offset
        ) from None


def skip_value(cursor: Cursor, value_type: GGUFValueType, field: str) -> None:
    """Steps over a value of this type, checking that all of it is there. No element is decoded."""
    if value_type is GGUFValueType.STRING:
        cursor.string(field)
    elif value_type is GGUFValueType.ARRAY:
        _skip_array(cursor, field, 1)
    else:
        cursor.skip(FIXED_FORMATS[value_type].n_bytes, field)


def array_header(cursor: Cursor, field: str) -> tuple[GGUFValueType, int]:
    """Reads an array's element type and its number of elements, which is checked against the bytes that remain."""
    element_type = cursor.value_type(f"{field} element type")
    match element_type:
        case GGUFValueType.STRING:
            min_item_bytes = _U64.size
        case GGUFValueType.ARRAY:
            min_item_bytes = ARRAY_HEADER_BYTES
        case _:
            min_item_bytes = FIXED_FORMATS[element_type].n_bytes
    return element_type, cursor.count(f"elements of type {element_type.name}", min_item_bytes, f"{field} length")


def _skip_array(cursor: Cursor, field: str, depth: int) -> None:
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.error(f"arrays nested deeper than {MAX_ARRAY_DEPTH}", field)
    element_type, n_elements = array_header(cursor, field)
    if element_type is GGUFValueType.STRING:
        _skip_strings(cursor, n_elements, field)
    elif element_type is GGUFValueType.ARRAY:
        for _ in range(n_elements):
            _skip_array(cursor, field, depth + 1)
    else:
        cursor.skip(n_elements * FIXED_FORMATS[element_type].n_bytes, field)


def _skip_strings(cursor: Cursor, n_strings: int, field: str, starts: array[int] | None = None) -> None:
    """Steps over the strings, and appends to `starts` where each one begins (with its length)."""
    # The loop that decides how long a file takes to open: vocabularies have some 10^5 strings. A length that is too
    # large moves `position` past `last`, which the next turn, or the check after the loop, notices before it reads.
    data, unpack = cursor.data, _U64.unpack_from
    start = position = cursor.position
    last = len(data) - _U64.size
    for _ in range(n_strings):
        if position > last:
            break
        if starts is not None:
            starts.append(position)
        (n_bytes,) = unpack(data, position)
        position += n_bytes + 8
    else:
        if position <= len(data):
            cursor.position = position
            return
    # One string is cut off: go again, slowly, to the one that is, and let it raise.
    cursor.position = start
    for index in range(n_strings):
        cursor.string(f"{field}[{index}]")


def element_starts(cursor: Cursor, element_type: GGUFValueType, n_elements: int, field: str) -> array[int]:
    """Where each of the STRING or ARRAY elements at the cursor starts, and after them where the last one ends."""
    starts = array("Q")
    if element_type is GGUFValueType.STRING:
        _skip_strings(cursor, n_elements, field, starts)
    else:
        for _ in range(n_elements):
            starts.append(cursor.position)
            _skip_array(cursor, field, 1)
    starts.append(cursor.position)
    return starts
