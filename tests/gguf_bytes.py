"""Assembles GGUF files by hand, from the format's specification alone, so that tests can also assemble wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from minfer.gguf import GGUFValueType, TypedValue

CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}

F32 = 0
Q8_0 = 8


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def value(typed: TypedValue) -> bytes:
    """A value as it lies in the file, without its type. Arrays in an array are `TypedValue`s."""
    if typed.value_type is GGUFValueType.STRING:
        return string(typed.value)
    if typed.value_type is GGUFValueType.ARRAY:
        element_type = typed.element_type
        elements = [
            value(item if element_type is GGUFValueType.ARRAY else TypedValue(element_type, item))
            for item in typed.value
        ]
        return u32(element_type) + u64(len(elements)) + b"".join(elements)
    return struct.pack("<" + CODES[typed.value_type], typed.value)


def pair(key: str | bytes, typed: TypedValue) -> bytes:
    return raw_pair(key, typed.value_type, value(typed))


def raw_pair(key: str | bytes, value_type: int, data: bytes) -> bytes:
    return string(key) + u32(value_type) + data


def tensor_info(name: str | bytes, dims: Iterable[int], ggml_type: int = F32, offset: int = 0) -> bytes:
    """`dims` in the file's order: the length of a row first."""
    dims = list(dims)
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(ggml_type) + u64(offset)


@dataclass
class Draft:
    """A file in pieces; the counts and the padding follow from them unless they are set."""

    pairs: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    n_pairs: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        n_tensors = len(self.infos) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        return b"".join((b"GGUF", u32(self.version), u64(n_tensors), u64(n_pairs), *self.pairs, *self.infos))

    def encode(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data
