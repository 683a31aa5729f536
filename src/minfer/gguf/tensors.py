"""The tensor infos of a GGUF file: names, types, shapes, and where the bytes lie.

The limits, of the format or of what readers in use accept:
names of 1 to 64 bytes of UTF-8, unique; 1 to 4 dimensions, each from 1 to 2^63 - 1, and so is their product; a first
dimension (NumPy's last) that is a whole number of blocks; offsets that are multiples of the alignment. Tensors may lie
in any order and with gaps between them, but may not overlap or reach past the end of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from minfer.errors import UnsupportedError
from minfer.gguf.scan import Cursor, shown
from minfer.quants.ggml_types import GGMLType, block_geometry, row_bytes

MAX_NAME_BYTES = 64
MAX_DIMS = 4
MAX_VALUES = 2**63 - 1

MIN_TENSOR_INFO_BYTES = 8 + 1 + 4 + 8 + 4 + 8
"""A name's length and one byte of it, the number of dimensions, one dimension, the type, the offset."""

_WITHDRAWN_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a GGUF file.

    `shape` is in NumPy's order, (n_rows, n_columns) for a matrix: the reverse of the file's. `offset` counts from the
    start of the file that holds the tensor, which is number `part` of `GGUFFile.paths`.
    """

    name: str
    ggml_type: GGMLType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    part: int

    @property
    def n_values(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class _Declared:
    """A tensor info as the file has it: `offset` counts from the start of the data, and stands at byte `offset_at`."""

    name: str
    ggml_type: GGMLType
    shape: tuple[int, ...]
    n_bytes: int
    offset: int
    offset_at: int


def read_tensors(cursor: Cursor, n_tensors: int, alignment: int, part: int) -> list[TensorInfo]:
    """Reads the tensor infos at the cursor, up to the tensors' data, and checks that the data is there.

    Raises:
        GGUFError: if an info breaks one of the limits above.
        UnsupportedError: for a tensor type that this engine does not know.
    """
    declared: dict[str, _Declared] = {}
    for index in range(n_tensors):
        offset = cursor.position
        info = _read_info(cursor, f"tensor {index}", alignment)
        if info.name in declared:
            raise cursor.error(f"the name {shown(info.name)} occurs twice", f"tensor {index} name", offset)
        declared[info.name] = info
    data_start = align_up(cursor.position, alignment)
    _check_data(cursor, list(declared.values()), data_start)
    return [
        TensorInfo(info.name, info.ggml_type, info.shape, data_start + info.offset, info.n_bytes, part)
        for info in declared.values()
    ]


def align_up(offset: int, alignment: int) -> int:
    """The next multiple of `alignment`."""
    return -(-offset // alignment) * alignment


def packed_bytes(ggml_type: GGMLType, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor whose last dimension is a whole number of blocks."""
    return prod(shape[:-1]) * row_bytes(ggml_type, shape[-1])


def _read_info(cursor: Cursor, field: str, alignment: int) -> _Declared:
    offset = cursor.position
    name = cursor.text(f"{field} name", MAX_NAME_BYTES)
    if not name:
        raise cursor.error("the name is empty", f"{field} name", offset)
    field = f"tensor {shown(name)}"
    shape_at = cursor.position
    shape = _read_shape(cursor, field)
    ggml_type = _read_type(cursor, name)
    n_block_values = block_geometry(ggml_type).n_values
    if shape[-1] % n_block_values:
        message = f"rows of {shape[-1]} values are no whole number of {ggml_type.name} blocks of {n_block_values}"
        raise cursor.error(message, f"{field} dimensions", shape_at)
    offset_at = cursor.position
    data_offset = cursor.u64(f"{field} offset")
    if data_offset % alignment:
        raise cursor.error(
            f"{data_offset} is not a multiple of the alignment {alignment}", f"{field} offset", offset_at
        )
    return _Declared(name, ggml_type, shape, packed_bytes(ggml_type, shape), data_offset, offset_at)


def _read_shape(cursor: Cursor, field: str) -> tuple[int, ...]:
    offset = cursor.position
    n_dims = cursor.u32(f"{field} number of dimensions")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.error(f"must be 1 to {MAX_DIMS}, not {n_dims}", f"{field} number of dimensions", offset)
    dims_at = cursor.position
    dims = [cursor.u64(f"{field} dimension {index}") for index in range(n_dims)]
    for index, dim in enumerate(dims):
        if not 1 <= dim <= MAX_VALUES:
            raise cursor.error(f"must be 1 to 2^63 - 1, not {dim}", f"{field} dimension {index}", dims_at + 8 * index)
    if prod(dims) > MAX_VALUES:
        raise cursor.error(
            f"{' x '.join(map(str, dims))} values are more than 2^63 - 1", f"{field} dimensions", dims_at
        )
    return tuple(reversed(dims))


def _read_type(cursor: Cursor, name: str) -> GGMLType:
    number = cursor.u32(f"tensor {shown(name)} type")
    try:
        return GGMLType(number)
    except ValueError:
        withdrawn = _WITHDRAWN_TYPES.get(number)
        what = f"ggml type {number}{f' ({withdrawn})' if withdrawn else ''} of tensor {shown(name)} in {cursor.path}"
        hint = "The type was withdrawn from the format: quantise the model anew." if withdrawn else ""
        raise UnsupportedError(what, [known.name for known in GGMLType], hint) from None


def _check_data(cursor: Cursor, tensors: list[_Declared], data_start: int) -> None:
    n_data_bytes = len(cursor.data) - data_start
    for info in tensors:
        if info.offset + info.n_bytes > n_data_bytes:
            raise cursor.error(
                f"its {info.n_bytes} bytes from byte {data_start + info.offset} of the file reach past its end, "
                f"byte {len(cursor.data)}; the file is cut short or damaged",
                f"tensor {shown(info.name)} offset",
                info.offset_at,
            )
    for before, after in pairwise(sorted(tensors, key=lambda info: info.offset)):
        if before.offset + before.n_bytes > after.offset:
            raise cursor.error(
                f"its data starts at byte {data_start + after.offset}, within that of {shown(before.name)}, "
                f"which takes {before.n_bytes} bytes from byte {data_start + before.offset}",
                f"tensor {shown(after.name)} offset",
                after.offset_at,
            )
