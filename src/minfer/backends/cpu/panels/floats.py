"""Panels of float weights (F32, F16, BF16): 16 rows each, one after the other, [k][16 rows] of the file's type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cpu.panels.formats import PANEL_ROWS
from minfer.quants import GGMLType
from minfer.simd import Scalar, bf16, f16, f32

FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
ELEMENTS: Final[Mapping[GGMLType, Scalar]] = MappingProxyType(
    {GGMLType.F32: f32, GGMLType.F16: f16, GGMLType.BF16: bf16}
)
"""What kernels read them as."""


def packed_float_bytes(ggml_type: GGMLType, n_rows: int, n_columns: int) -> int:
    """Bytes of the panels of a weight."""
    return -(-n_rows // PANEL_ROWS) * PANEL_ROWS * n_columns * ELEMENTS[ggml_type].n_bytes


def pack_float(ggml_type: GGMLType, data: NDArray[np.uint8], n_columns: int, out: NDArray[np.uint8]) -> None:
    """Packs rows uint8 [n_rows, row_bytes] into panels; missing rows of the last one become zero."""
    dtype = np.uint32 if ggml_type is GGMLType.F32 else np.uint16
    rows = np.ascontiguousarray(data).view(dtype)
    missing = -len(rows) % PANEL_ROWS
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, n_columns), dtype)])
    panels = out.view(dtype).reshape(-1, n_columns, PANEL_ROWS)
    panels[:] = rows.reshape(-1, PANEL_ROWS, n_columns).transpose(0, 2, 1)
