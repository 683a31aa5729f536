"""The ggml tensor types: their block layouts and values, in NumPy. The definition that kernels are tested against."""

from __future__ import annotations

from minfer.quants.blocks import UnpackedBlocks
from minfer.quants.convert import (
    dequantisable_types,
    dequantise,
    quantisable_types,
    quantise,
    unpack,
    unpackable_types,
)
from minfer.quants.ggml_types import BlockGeometry, GGMLType, block_geometry, row_bytes

__all__ = [
    "BlockGeometry",
    "GGMLType",
    "UnpackedBlocks",
    "block_geometry",
    "dequantisable_types",
    "dequantise",
    "quantisable_types",
    "quantise",
    "row_bytes",
    "unpack",
    "unpackable_types",
]
