"""Turns Python values into the bytes of GGUF metadata values."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from minfer.errors import GGUFError, ParameterError
from minfer.gguf.arrays import GGUFArray
from minfer.gguf.scan import MAX_ARRAY_DEPTH, Cursor, shown, skip_value
from minfer.gguf.values import FIXED_FORMATS, EncodedValue, GGUFValueType, TypedValue, ValueKind, kind_of

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_DTYPE_TYPES: dict[str, GGUFValueType] = {
    "u1": GGUFValueType.UINT8,
    "i1": GGUFValueType.INT8,
    "u2": GGUFValueType.UINT16,
    "i2": GGUFValueType.INT16,
    "u4": GGUFValueType.UINT32,
    "i4": GGUFValueType.INT32,
    "u8": GGUFValueType.UINT64,
    "i8": GGUFValueType.INT64,
    "f4": GGUFValueType.FLOAT32,
    "f8": GGUFValueType.FLOAT64,
    "b1": GGUFValueType.BOOL,
}

_TYPES_BY_DEFAULT = {
    ValueKind.FLOAT: GGUFValueType.FLOAT32,
    ValueKind.BOOL: GGUFValueType.BOOL,
    ValueKind.STR: GGUFValueType.STRING,
    ValueKind.ARRAY: GGUFValueType.ARRAY,
}

# Hyper-parameters are UINT32 by custom, and arrays (token types) INT32.
_INT_RANGES = {
    GGUFValueType.UINT32: range(2**32),
    GGUFValueType.INT32: range(-(2**31), 2**31),
    GGUFValueType.INT64: range(-(2**63), 2**63),
    GGUFValueType.UINT64: range(2**64),
}
_SCALAR_INT_ORDER = (GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.INT64, GGUFValueType.UINT64)
_ELEMENT_INT_ORDER = (GGUFValueType.INT32, GGUFValueType.INT64, GGUFValueType.UINT64)


def encode_value(value: object, field: str) -> tuple[GGUFValueType, bytes | memoryview]:
    """The type and the bytes of a metadata value; `field` names it in errors.

    | value | type in the file |
    |---|---|
    | `TypedValue`, `EncodedValue`, `GGUFArray`, a NumPy scalar or one-dimensional array | as it says |
    | `bool`; `float`; `str` or `bytes` | BOOL; FLOAT32, rounded, as is the custom; STRING |
    | `int` | the first that holds it of UINT32, INT32, INT64, UINT64 |
    | `list`, `tuple` | ARRAY of its elements' type, for integers the first of INT32, INT64, UINT64 that holds all |

    Raises:
        ParameterError: if the value has no type in GGUF, or does not fit the one it is to have.
    """
    if isinstance(value, EncodedValue):
        _check_encoded(value, field)
        return value.value_type, value.data
    if isinstance(value, TypedValue) and value.value_type is not GGUFValueType.ARRAY:
        return value.value_type, _encode_scalar(value.value, field, value.value_type)
    if _kind(value, field) is ValueKind.ARRAY:
        array = EncodedValue(GGUFValueType.ARRAY, _encode_array(value, field, 1))
        _check_encoded(array, field)  # an array from a file, put into others, may have become too deep
        return array.value_type, array.data
    if isinstance(value, np.generic):
        value_type = _dtype_type(value.dtype, field)
    else:
        value_type = _common_type([value], _SCALAR_INT_ORDER, field)
    return value_type, _encode_scalar(value, field, value_type)


def encode_string(data: str | bytes, field: str) -> bytes:
    """A string as it lies in the file: its length in 64 bits, then its bytes."""
    try:
        raw = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        raise ParameterError(f"{field}: {shown(data)} has no UTF-8 form: {error.reason}") from None
    return _U64.pack(len(raw)) + raw


def _check_encoded(value: EncodedValue, field: str) -> None:
    cursor = Cursor(memoryview(value.data), "EncodedValue")
    try:
        skip_value(cursor, value.value_type, field)
    except GGUFError as error:
        raise ParameterError(str(error)) from error
    if cursor.n_remaining:
        raise ParameterError(f"{field}: {cursor.n_remaining} bytes more than a {value.value_type.name} takes")


def _kind(value: object, field: str) -> ValueKind:
    match value:
        case bool() | np.bool_():
            return ValueKind.BOOL
        case int() | np.integer():
            return ValueKind.INT
        case float() | np.floating():
            return ValueKind.FLOAT
        case str() | bytes():
            return ValueKind.STR
        case list() | tuple() | np.ndarray() | GGUFArray() | TypedValue(value_type=GGUFValueType.ARRAY):
            return ValueKind.ARRAY
        case _:
            raise ParameterError(f"{field}: {shown(value)}, of type {type(value).__name__}, has no type in GGUF")


def _dtype_type(dtype: np.dtype[np.generic], field: str) -> GGUFValueType:
    code = dtype.str[1:]  # without the byte order
    if code not in _DTYPE_TYPES:
        raise ParameterError(f"{field}: NumPy's {dtype} has no type in GGUF")
    return _DTYPE_TYPES[code]


def _common_type(values: Sequence[object], int_order: Sequence[GGUFValueType], field: str) -> GGUFValueType:
    kinds = {_kind(value, field) for value in values}
    if len(kinds) != 1:
        names = ", ".join(sorted(kind.value for kind in kinds))
        met = f"elements of several kinds: {names}" if kinds else "no elements"
        raise ParameterError(f"{field}: an array with {met}; give its type with TypedValue")
    (kind,) = kinds
    if kind is not ValueKind.INT:
        return _TYPES_BY_DEFAULT[kind]
    integers = [int(value) for value in values if isinstance(value, int | np.integer)]
    low, high = min(integers), max(integers)
    for value_type in int_order:
        if low in _INT_RANGES[value_type] and high in _INT_RANGES[value_type]:
            return value_type
    raise ParameterError(f"{field}: no integer type of GGUF holds {low} and {high}")


def _encode_scalar(value: object, field: str, value_type: GGUFValueType) -> bytes:
    kind = _kind(value, field)
    wanted = kind_of(value_type)
    if kind is not wanted and (wanted, kind) != (ValueKind.FLOAT, ValueKind.INT):
        raise ParameterError(
            f"{field}: {shown(value)} is of kind {kind.value}, and can't be written as {value_type.name}"
        )
    if isinstance(value, str | bytes):
        return encode_string(value, field)
    try:
        return FIXED_FORMATS[value_type].packer.pack(bool(value) if kind is ValueKind.BOOL else value)
    except (struct.error, OverflowError):
        raise ParameterError(f"{field}: {shown(value)} does not fit {value_type.name}") from None


def _encode_array(value: object, field: str, depth: int) -> bytes | memoryview:
    """An array as it lies in the file: element type, length, elements."""
    if depth > MAX_ARRAY_DEPTH:
        raise ParameterError(f"{field}: arrays nested deeper than {MAX_ARRAY_DEPTH}")
    element_type = None
    if isinstance(value, TypedValue):
        element_type, value = value.element_type, value.value
    if isinstance(value, GGUFArray) and element_type in (None, value.element_type):
        return value.encoded()
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise ParameterError(f"{field}: an array must have one dimension, not shape {value.shape}")
        element_type = _dtype_type(value.dtype, field) if element_type is None else element_type
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ParameterError(f"{field}: {shown(value)}, of type {type(value).__name__}, is no sequence")
    if element_type is None:
        element_type = _common_type(value, _ELEMENT_INT_ORDER, field)
    encode: Callable[[object, str], bytes | memoryview]
    if element_type is GGUFValueType.ARRAY:
        encode = partial(_encode_array, depth=depth + 1)
    else:
        encode = partial(_encode_scalar, value_type=element_type)
    elements = (encode(element, field=f"{field}[{index}]") for index, element in enumerate(value))
    return b"".join((_U32.pack(element_type), _U64.pack(len(value)), *elements))
