"""The types of GGUF's metadata values: their numbers in the file, their sizes, and how to read one.

Source: the GGUF specification (`gguf_metadata_value_type`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

import numpy as np

from minfer.errors import ParameterError


class GGUFValueType(IntEnum):
    """The types of metadata values, by their number in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class ValueKind(Enum):
    """What a value is to Python, whatever its width in the file."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STR = "str"
    ARRAY = "array"


@dataclass(frozen=True)
class TypedValue:
    """A value with the exact type it is to have in the file.

    `value` is a Python (or NumPy) scalar, a `str` or `bytes` for STRING, or a sequence for ARRAY. `element_type` goes
    with ARRAY alone: the type of its elements, which for an array of arrays are `TypedValue`s or sequences themselves.
    """

    value_type: GGUFValueType
    value: object
    element_type: GGUFValueType | None = None

    def __post_init__(self) -> None:
        if self.element_type is not None and self.value_type is not GGUFValueType.ARRAY:
            raise ParameterError(f"element_type goes with an ARRAY, not with a value of type {self.value_type.name}")


@dataclass(frozen=True)
class EncodedValue:
    """A value as the bytes it has in the file (after its type), so that copying it changes no bit."""

    value_type: GGUFValueType
    data: bytes | memoryview


@dataclass(frozen=True)
class FixedFormat:
    """How a value of fixed size lies in the file, little-endian and unpadded."""

    packer: struct.Struct
    dtype: np.dtype[np.generic]

    @property
    def n_bytes(self) -> int:
        return self.packer.size


def _fixed(code: str, dtype: str) -> FixedFormat:
    return FixedFormat(struct.Struct("<" + code), np.dtype(dtype))


# STRING and ARRAY, whose size is in the file, are the two that are missing here. A BOOL is a byte that must be 0 or 1.
FIXED_FORMATS: dict[GGUFValueType, FixedFormat] = {
    GGUFValueType.UINT8: _fixed("B", "u1"),
    GGUFValueType.INT8: _fixed("b", "i1"),
    GGUFValueType.UINT16: _fixed("H", "<u2"),
    GGUFValueType.INT16: _fixed("h", "<i2"),
    GGUFValueType.UINT32: _fixed("I", "<u4"),
    GGUFValueType.INT32: _fixed("i", "<i4"),
    GGUFValueType.FLOAT32: _fixed("f", "<f4"),
    GGUFValueType.BOOL: _fixed("B", "u1"),
    GGUFValueType.UINT64: _fixed("Q", "<u8"),
    GGUFValueType.INT64: _fixed("q", "<i8"),
    GGUFValueType.FLOAT64: _fixed("d", "<f8"),
}

_OTHER_KINDS: dict[GGUFValueType, ValueKind] = {
    GGUFValueType.FLOAT32: ValueKind.FLOAT,
    GGUFValueType.FLOAT64: ValueKind.FLOAT,
    GGUFValueType.BOOL: ValueKind.BOOL,
    GGUFValueType.STRING: ValueKind.STR,
    GGUFValueType.ARRAY: ValueKind.ARRAY,
}

Scalar: TypeAlias = int | float | bool | str


def kind_of(value_type: GGUFValueType) -> ValueKind:
    """What a value of this type is to Python."""
    return _OTHER_KINDS.get(value_type, ValueKind.INT)


def fits_kind(value_type: GGUFValueType, wanted: ValueKind) -> bool:
    """Whether a value of this type serves where `wanted` is asked for. An int serves as a float; a bool is no int."""
    kind = kind_of(value_type)
    return kind is wanted or (wanted is ValueKind.FLOAT and kind is ValueKind.INT)
