"""The key-value pairs in a GGUF file, read lazily, with getters that say what they wanted and what they met."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, TypeVar, overload

from minfer.errors import ModelError
from minfer.gguf.arrays import ArrayValue, GGUFArray, read_scalar
from minfer.gguf.scan import Cursor, shown, skip_value
from minfer.gguf.values import EncodedValue, GGUFValueType, ValueKind, fits_kind, kind_of

MAX_KEY_BYTES = 2**16 - 1
"""The format's own limit."""

MIN_PAIR_BYTES = 8 + 1 + 4 + 1
"""A key's length and one byte of it, the value's type, one byte of value."""


class Missing(Enum):
    """The default of the getters: that a missing key is an error."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING

MetadataValue: TypeAlias = ArrayValue
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a value lies: its bytes from `start` to `end` in `data`, of the file at `path`."""

    value_type: GGUFValueType
    data: memoryview
    path: str
    start: int
    end: int

    def encoded(self) -> memoryview:
        return self.data[self.start : self.end]


def read_entries(cursor: Cursor, n_pairs: int) -> dict[str, Entry]:
    """Reads the keys and steps over the values, checking that each is whole. Values are not decoded."""
    entries: dict[str, Entry] = {}
    for index in range(n_pairs):
        field = f"metadata key {index}"
        offset = cursor.position
        key = cursor.text(field, MAX_KEY_BYTES)
        if not key:
            raise cursor.error("the key is empty", field, offset)
        if key in entries:
            raise cursor.error(f"the key {shown(key)} occurs twice", field, offset)
        value_field = _field(key)
        value_type = cursor.value_type(f"{value_field} type")
        start = cursor.position
        skip_value(cursor, value_type, value_field)
        entries[key] = Entry(value_type, cursor.data, cursor.path, start, cursor.position)
    return entries


class Metadata(Mapping[str, MetadataValue]):
    """A file's metadata, in file order. Values are `int`, `float`, `bool`, `str` or `GGUFArray`.

    Values are decoded when they are asked for: a string that is not UTF-8, or a bool that is neither 0 nor 1, raises
    `GGUFError` then. An object taken from here keeps the mapping of the file alive.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)
        self._arrays: dict[str, GGUFArray] = {}

    def __getitem__(self, key: str) -> MetadataValue:
        entry = self._entries[key]
        if entry.value_type is GGUFValueType.ARRAY:
            return self._array(key)
        return read_scalar(_cursor(entry), entry.value_type, _field(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"<Metadata of {len(self)} keys>"

    def value_type(self, key: str) -> GGUFValueType:
        """The type that the value has in the file. Raises `ModelError` for a missing key."""
        return self._entry(key).value_type

    def encoded(self, key: str) -> EncodedValue:
        """The value's bytes as they are in the file, for copying it exactly. Raises `ModelError` for a missing key."""
        entry = self._entry(key)
        return EncodedValue(entry.value_type, entry.encoded())

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: T) -> int | T: ...
    def get_int(self, key: str, default: object = MISSING) -> object:
        """An integer of any width. Like all getters, it gives `default`, where there is one, for a missing key.

        Raises:
            ModelError: if the key is missing and there is no default, or the value is not of the kind asked for.
            GGUFError: if the value itself is damaged.
        """
        return self._scalar(key, ValueKind.INT, default)

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: T) -> float | T: ...
    def get_float(self, key: str, default: object = MISSING) -> object:
        """A float of any width, or an integer, as a float."""
        value = self._scalar(key, ValueKind.FLOAT, default)
        return float(value) if isinstance(value, int) and key in self._entries else value

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: T) -> bool | T: ...
    def get_bool(self, key: str, default: object = MISSING) -> object:
        """A bool."""
        return self._scalar(key, ValueKind.BOOL, default)

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: T) -> str | T: ...
    def get_str(self, key: str, default: object = MISSING) -> object:
        """A string."""
        return self._scalar(key, ValueKind.STR, default)

    @overload
    def get_array(self, key: str, element: ValueKind | None = None) -> GGUFArray: ...
    @overload
    def get_array(self, key: str, element: ValueKind | None, default: T) -> GGUFArray | T: ...
    @overload
    def get_array(self, key: str, element: ValueKind | None = None, *, default: T) -> GGUFArray | T: ...
    def get_array(self, key: str, element: ValueKind | None = None, default: object = MISSING) -> object:
        """An array; with `element`, one of elements of that kind. An empty array passes for any kind."""
        if key not in self._entries and default is not MISSING:
            return default
        self._check_kind(key, ValueKind.ARRAY)
        array = self._array(key)
        if element is not None and len(array) and not fits_kind(array.element_type, element):
            raise ModelError(
                f"metadata key {shown(key)} should be an array of {element.value}, "
                f"but is an array of {array.element_type.name}"
            )
        return array

    def _array(self, key: str) -> GGUFArray:
        # Kept, since an array of strings remembers where they start.
        if key not in self._arrays:
            self._arrays[key] = GGUFArray(_cursor(self._entries[key]), _field(key))
        return self._arrays[key]

    def _scalar(self, key: str, wanted: ValueKind, default: object) -> object:
        if key not in self._entries and default is not MISSING:
            return default
        self._check_kind(key, wanted)
        return self[key]

    def _check_kind(self, key: str, wanted: ValueKind) -> None:
        met = self._entry(key).value_type
        if not fits_kind(met, wanted):
            value = "" if kind_of(met) is ValueKind.ARRAY else f" ({shown(self[key])})"
            raise ModelError(f"metadata key {shown(key)} should be {wanted.value}, but is {met.name}{value}")

    def _entry(self, key: str) -> Entry:
        if key not in self._entries:
            near = difflib.get_close_matches(key, self._entries, n=3)
            hint = f"; did you mean {' or '.join(map(shown, near))}?" if near else ""
            raise ModelError(f"metadata key {shown(key)} is missing{hint}")
        return self._entries[key]


def _cursor(entry: Entry) -> Cursor:
    return Cursor(entry.data, entry.path, entry.start)


def _field(key: str) -> str:
    return f"metadata {shown(key)}"
