"""Writes GGUF files: all or nothing, and without holding the tensors in memory."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import index
from os import SEEK_END, fsync
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.gguf.encode import encode_string, encode_value
from minfer.gguf.metadata import MAX_KEY_BYTES, Metadata
from minfer.gguf.parts import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MIN_ALIGNMENT, VERSIONS
from minfer.gguf.scan import shown
from minfer.gguf.tensors import MAX_DIMS, MAX_NAME_BYTES, MAX_VALUES, align_up, packed_bytes
from minfer.gguf.values import FIXED_FORMATS, GGUFValueType, TypedValue, ValueKind, kind_of
from minfer.quants.ggml_types import GGMLType, block_geometry

PackedData: TypeAlias = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]
"""A tensor's packed bytes, or what makes them when their turn to be written has come."""

TensorSource: TypeAlias = tuple[str, Sequence[int], GGMLType, PackedData]
"""Name, shape in NumPy's order, type and packed bytes."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True)
class _Planned:
    """A checked tensor, and where its data goes, counted from the start of the data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    data: PackedData
    n_bytes: int
    offset: int


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, object],
    tensors: Iterable[TensorSource],
    *,
    version: int = 3,
    alignment: int | None = None,
) -> None:
    """Writes a GGUF file. It appears under its name when it is complete and on disk, and not at all if something fails.

    Args:
        path: the file to write; one that is there is replaced.
        metadata: the key-value pairs, in order. The `Metadata` of an open file is copied bit for bit; for other values
            see `minfer.gguf.encode.encode_value`, which says what type they get, and `TypedValue`, which gives them
            an exact one.
        tensors: name, shape (NumPy's order), type and packed bytes (uint8, any shape, of the size that type and shape
            give) of each tensor. The bytes may be a function that makes them: it is called when they are written, so
            that a model can be converted tensor by tensor.
        version: of the format: 2 or 3, which for little-endian files differ in this number alone.
        alignment: of the tensors' data, a power of two from 8 on; by default what `general.alignment` says in
            `metadata`, or 32. The key is added where it is needed.

    Raises:
        ParameterError: if something can't be written; names it.
        OSError: if the system can't write the file.
    """
    path = Path(path)
    if version not in VERSIONS:
        raise ParameterError(f"version must be one of {', '.join(map(str, VERSIONS))}, not {version}")
    pairs, alignment = _encode_metadata(metadata, alignment)
    plan = _plan(tensors, alignment)
    header = _header(version, pairs, plan)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(header)
            for tensor in plan:
                _pad(file, alignment)
                file.write(_packed(tensor))
            if plan:
                _pad(file, alignment)  # readers in use want the last tensor padded too
            file.flush()
            fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _encode_metadata(metadata: Mapping[str, object], alignment: int | None) -> tuple[dict[str, bytes], int]:
    """The bytes of each value, its type in front, and the alignment that was asked for or that the metadata has."""
    values = _values(metadata)
    if alignment is not None and alignment != DEFAULT_ALIGNMENT:
        values.setdefault(ALIGNMENT_KEY, TypedValue(GGUFValueType.UINT32, alignment))
    pairs: dict[str, bytes] = {}
    for key, value in values.items():
        field = f"metadata {shown(key)}"
        n_key_bytes = len(encode_string(key, field)) - _U64.size
        if not 1 <= n_key_bytes <= MAX_KEY_BYTES:
            raise ParameterError(f"{field}: a key must have 1 to {MAX_KEY_BYTES} bytes, not {n_key_bytes}")
        value_type, data = encode_value(value, field)
        if key == ALIGNMENT_KEY:
            alignment = _agreed_alignment(value_type, data, alignment)
        pairs[key] = _U32.pack(value_type) + data
    return pairs, _check_alignment(DEFAULT_ALIGNMENT if alignment is None else alignment)


def _values(metadata: Mapping[str, object]) -> dict[str, object]:
    if isinstance(metadata, Metadata):
        return {key: metadata.encoded(key) for key in metadata}
    return dict(metadata)


def _agreed_alignment(value_type: GGUFValueType, data: bytes | memoryview, wanted: int | None) -> int:
    if kind_of(value_type) is not ValueKind.INT:
        raise ParameterError(f"metadata {ALIGNMENT_KEY!r} must be an integer, not {value_type.name}")
    (met,) = FIXED_FORMATS[value_type].packer.unpack(data)
    if wanted is not None and wanted != met:
        raise ParameterError(f"alignment is {wanted}, but metadata {ALIGNMENT_KEY!r} says {met}")
    return int(met)


def _check_alignment(alignment: int) -> int:
    if alignment < MIN_ALIGNMENT or alignment & (alignment - 1):
        raise ParameterError(f"alignment must be a power of two from {MIN_ALIGNMENT} on, not {alignment}")
    return alignment


def _plan(tensors: Iterable[TensorSource], alignment: int) -> list[_Planned]:
    plan: dict[str, _Planned] = {}
    offset = 0
    for name, dims, ggml_type, data in tensors:
        field = f"tensor {shown(name)}"
        if name in plan:
            raise ParameterError(f"{field}: the name occurs twice")
        n_name_bytes = len(encode_string(name, field)) - _U64.size
        if not 1 <= n_name_bytes <= MAX_NAME_BYTES:
            raise ParameterError(f"{field}: a name must have 1 to {MAX_NAME_BYTES} bytes, not {n_name_bytes}")
        shape = _check_shape(tuple(map(index, dims)), ggml_type, field)
        tensor = _Planned(name, shape, ggml_type, data, packed_bytes(ggml_type, shape), offset)
        if isinstance(data, np.ndarray):
            _check_packed(data, tensor)
        plan[name] = tensor
        offset = align_up(offset + tensor.n_bytes, alignment)
    return list(plan.values())


def _check_shape(shape: tuple[int, ...], ggml_type: GGMLType, field: str) -> tuple[int, ...]:
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1 or prod(shape) > MAX_VALUES:
        raise ParameterError(
            f"{field}: shape {shape} must have 1 to {MAX_DIMS} dimensions of at least 1, and at most 2^63 - 1 values"
        )
    n_block_values = block_geometry(ggml_type).n_values
    if shape[-1] % n_block_values:
        raise ParameterError(
            f"{field}: rows of {shape[-1]} values are no whole number of {ggml_type.name} blocks of {n_block_values}"
        )
    return shape


def _check_packed(data: NDArray[np.uint8], tensor: _Planned) -> None:
    field = f"tensor {shown(tensor.name)}"
    if data.dtype != np.uint8:
        raise ParameterError(f"{field}: packed bytes must be of dtype uint8, not {data.dtype}")
    if data.nbytes != tensor.n_bytes:
        raise ParameterError(
            f"{field}: shape {tensor.shape} and type {tensor.ggml_type.name} take {tensor.n_bytes} bytes, "
            f"but {data.nbytes} are given"
        )


def _header(version: int, pairs: Mapping[str, bytes], plan: Sequence[_Planned]) -> bytes:
    pieces = [MAGIC, _U32.pack(version), _U64.pack(len(plan)), _U64.pack(len(pairs))]
    for key, value in pairs.items():
        pieces += (encode_string(key, key), value)
    for tensor in plan:
        pieces += (encode_string(tensor.name, tensor.name), _U32.pack(len(tensor.shape)))
        pieces += map(_U64.pack, reversed(tensor.shape))
        pieces += (_U32.pack(tensor.ggml_type), _U64.pack(tensor.offset))
    return b"".join(pieces)


def _packed(tensor: _Planned) -> memoryview:
    data = tensor.data
    if not isinstance(data, np.ndarray):
        data = data()
        _check_packed(data, tensor)
    return np.ascontiguousarray(data).data.cast("B")


def _pad(file: BinaryIO, alignment: int) -> None:
    file.truncate(align_up(file.tell(), alignment))
    file.seek(0, SEEK_END)
