"""The ggml tensor types: numbers as in GGUF files, and the geometry of their blocks.

Source: the `ggml_type` enumeration and block structures of the GGUF/ggml format.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class GGMLType(IntEnum):
    """Tensor types by their number in a GGUF file. Numbers missing here were withdrawn from the format."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39


@dataclass(frozen=True)
class BlockGeometry:
    """`n_values` consecutive values of a row are stored together in `n_bytes` bytes."""

    n_values: int
    n_bytes: int

    @property
    def bits_per_value(self) -> float:
        return 8 * self.n_bytes / self.n_values


_GEOMETRY: dict[GGMLType, BlockGeometry] = {
    GGMLType.F32: BlockGeometry(1, 4),
    GGMLType.F16: BlockGeometry(1, 2),
    GGMLType.BF16: BlockGeometry(1, 2),
    GGMLType.F64: BlockGeometry(1, 8),
    GGMLType.I8: BlockGeometry(1, 1),
    GGMLType.I16: BlockGeometry(1, 2),
    GGMLType.I32: BlockGeometry(1, 4),
    GGMLType.I64: BlockGeometry(1, 8),
    GGMLType.Q4_0: BlockGeometry(32, 2 + 16),
    GGMLType.Q4_1: BlockGeometry(32, 2 + 2 + 16),
    GGMLType.Q5_0: BlockGeometry(32, 2 + 4 + 16),
    GGMLType.Q5_1: BlockGeometry(32, 2 + 2 + 4 + 16),
    GGMLType.Q8_0: BlockGeometry(32, 2 + 32),
    GGMLType.Q8_1: BlockGeometry(32, 2 + 2 + 32),
    GGMLType.Q2_K: BlockGeometry(256, 256 // 16 + 256 // 4 + 2 + 2),
    GGMLType.Q3_K: BlockGeometry(256, 256 // 8 + 256 // 4 + 12 + 2),
    GGMLType.Q4_K: BlockGeometry(256, 2 + 2 + 12 + 256 // 2),
    GGMLType.Q5_K: BlockGeometry(256, 2 + 2 + 12 + 256 // 8 + 256 // 2),
    GGMLType.Q6_K: BlockGeometry(256, 256 // 2 + 256 // 4 + 256 // 16 + 2),
    GGMLType.Q8_K: BlockGeometry(256, 4 + 256 + 2 * (256 // 16)),
    GGMLType.IQ1_S: BlockGeometry(256, 2 + 256 // 8 + 256 // 16),
    GGMLType.IQ1_M: BlockGeometry(256, 256 // 8 + 256 // 16 + 256 // 32),
    GGMLType.IQ2_XXS: BlockGeometry(256, 2 + 256 // 4),
    GGMLType.IQ2_XS: BlockGeometry(256, 2 + 256 // 4 + 256 // 32),
    GGMLType.IQ2_S: BlockGeometry(256, 2 + 256 // 4 + 256 // 16),
    GGMLType.IQ3_XXS: BlockGeometry(256, 2 + 256 // 4 + 256 // 8),
    GGMLType.IQ3_S: BlockGeometry(256, 2 + 256 // 4 + 256 // 8 + 256 // 32 + 4),
    GGMLType.IQ4_NL: BlockGeometry(32, 2 + 16),
    GGMLType.IQ4_XS: BlockGeometry(256, 2 + 2 + 256 // 2 + 256 // 64),
    GGMLType.TQ1_0: BlockGeometry(256, 2 + 4 * 13),
    GGMLType.TQ2_0: BlockGeometry(256, 2 + 64),
    GGMLType.MXFP4: BlockGeometry(32, 1 + 16),
}


def block_geometry(ggml_type: GGMLType) -> BlockGeometry:
    """The block geometry of a type."""
    return _GEOMETRY[ggml_type]


def row_bytes(ggml_type: GGMLType, n_values: int) -> int:
    """Bytes of one row of `n_values` values, which must be a whole number of blocks (callers check)."""
    block = _GEOMETRY[ggml_type]
    n_blocks, rest = divmod(n_values, block.n_values)
    if rest:
        raise ValueError(
            f"a row of {n_values} values is no whole number of {ggml_type.name} blocks of {block.n_values}"
        )
    return n_blocks * block.n_bytes
