"""From the rows of a file to panels (`formats.py`): a rearrangement, in which no value changes.

Types with a compact panel are packed bit by bit (`pack_compact.py`). The others go to the wide one, which keeps their
integers in bytes and their scales in float32; `quants.unpack` knows how each stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cpu.panels import formats
from minfer.backends.cpu.panels.formats import BLOCK, PANEL_ROWS, PanelFormat
from minfer.backends.cpu.panels.pack_compact import COMPACT
from minfer.quants import GGMLType, UnpackedBlocks, block_geometry, unpack, unpackable_types

Bytes = NDArray[np.uint8]

_CHUNK_VALUES = 1 << 19


def panel_format(ggml_type: GGMLType) -> PanelFormat:
    """The panel format that a tensor type is packed to. Raises KeyError for types that hold no scaled integers."""
    if ggml_type in COMPACT:
        return COMPACT[ggml_type].panel
    return formats.WIDE[_WIDE_GROUPS[ggml_type]]


def packable_types() -> tuple[GGMLType, ...]:
    """Types that `pack` takes."""
    return unpackable_types()


def packed_bytes(ggml_type: GGMLType, n_rows: int, n_columns: int) -> int:
    """Bytes of the panels of a weight."""
    return -(-n_rows // PANEL_ROWS) * panel_format(ggml_type).panel_bytes(n_columns)


def pack(ggml_type: GGMLType, data: Bytes, n_columns: int, out: Bytes) -> None:
    """Packs rows uint8 [n_rows, row_bytes] into `out`, uint8 [packed_bytes]; missing rows of the last panel become
    zero."""
    panel = panel_format(ggml_type)
    n_rows = data.shape[0]
    rows_at_a_time = max(1, _CHUNK_VALUES // (PANEL_ROWS * n_columns)) * PANEL_ROWS
    for start in range(0, n_rows, rows_at_a_time):
        rows = np.ascontiguousarray(data[start : start + rows_at_a_time])
        missing = -len(rows) % PANEL_ROWS
        if missing:
            rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.uint8)])
        first = start // PANEL_ROWS * panel.panel_bytes(n_columns)
        size = len(rows) // PANEL_ROWS * panel.panel_bytes(n_columns)
        _pack_panels(ggml_type, rows, n_columns, out[first : first + size])


def _pack_panels(ggml_type: GGMLType, rows: Bytes, n_columns: int, out: Bytes) -> None:
    n_panels = len(rows) // PANEL_ROWS
    compact = COMPACT.get(ggml_type)
    if compact is None:
        panel = panel_format(ggml_type)
        _fill_wide(out.view(_wide_layout(panel)).reshape(n_panels, -1), unpack(ggml_type, rows, n_columns), panel)
    else:
        units, blocks = out.view(compact.unit), rows.view(compact.block)
        compact.fill(units.reshape(n_panels, -1), blocks.reshape(len(rows), -1))


def _wide_layout(panel: PanelFormat) -> np.dtype[np.void]:
    return np.dtype(
        [("scale", "<f4", (panel.n_groups, PANEL_ROWS)), ("words", "<u4", (formats.GROUPS_OF_FOUR, PANEL_ROWS))]
    )


def _fill_wide(units: NDArray[Any], parts: UnpackedBlocks, panel: PanelFormat) -> None:
    n_panels, n_units = units.shape
    # A group of the file may be longer than one of the panel (Q8_K: 256 values).
    n_repeats = parts.quants.shape[2] // (BLOCK // panel.n_groups)
    scales = np.repeat(parts.scales, n_repeats, axis=1)
    units["scale"] = scales.reshape(n_panels, PANEL_ROWS, n_units, panel.n_groups).transpose(0, 2, 3, 1)
    words = np.bitwise_xor(parts.quants.view(np.uint8), panel.zero, order="C").view("<u4")  # q + 128
    shape = (n_panels, PANEL_ROWS, n_units, formats.GROUPS_OF_FOUR)
    units["words"] = words.reshape(shape).transpose(0, 2, 3, 1)


def _wide_groups() -> Mapping[GGMLType, int]:
    """For each other type: scales for 32 columns. None of them has offsets."""
    found = {}
    for ggml_type in unpackable_types():
        if ggml_type not in COMPACT:
            geometry = block_geometry(ggml_type)
            sample = unpack(ggml_type, np.zeros((1, geometry.n_bytes), np.uint8), geometry.n_values)
            found[ggml_type] = max(1, BLOCK // sample.quants.shape[2])
    return MappingProxyType(found)


_WIDE_GROUPS: Final = _wide_groups()
