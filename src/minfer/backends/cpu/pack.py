"""From the rows of a file to panels (`panels.py`): a rearrangement, in which no value changes.

Integers come from `quants.unpack`, which knows every block format; scales are taken from the blocks as they are.
Formats without a compact panel go to the wide one, which keeps their integers in bytes and their scales in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cpu import panels
from minfer.backends.cpu.panels import BLOCK, PANEL_ROWS, PanelFormat
from minfer.quants import GGMLType, UnpackedBlocks, block_geometry, k_quants, legacy, unpack, unpackable_types

Bytes = NDArray[np.uint8]
Fill = Callable[[NDArray[Any], Bytes, NDArray[Any], UnpackedBlocks], None]
"""(units to fill [n_panels, n_units], dot4 integers [n_panels, n_units, blocks, 8, 64], file blocks [rows, n_units],
parts)"""

_CHUNK_VALUES = 1 << 19


def panel_format(ggml_type: GGMLType) -> PanelFormat:
    """The panel format that a tensor type is packed to. Raises KeyError for types that hold no scaled integers."""
    if ggml_type in _COMPACT:
        return _COMPACT[ggml_type][0]
    return panels.WIDE[_WIDE_GROUPS[ggml_type]]


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
        rows = data[start : start + rows_at_a_time]
        missing = -len(rows) % PANEL_ROWS
        if missing:
            rows = np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.uint8)])
        first = start // PANEL_ROWS * panel.panel_bytes(n_columns)
        size = len(rows) // PANEL_ROWS * panel.panel_bytes(n_columns)
        _pack_panels(ggml_type, panel, rows, n_columns, out[first : first + size])


def _pack_panels(ggml_type: GGMLType, panel: PanelFormat, rows: Bytes, n_columns: int, out: Bytes) -> None:
    n_panels, n_units = len(rows) // PANEL_ROWS, n_columns // panel.unit_columns
    parts = unpack(ggml_type, rows, n_columns)
    u = parts.quants.reshape(len(rows), n_columns).view(np.uint8) + np.uint8(panel.zero)
    shape = (n_panels, PANEL_ROWS, n_units, panel.n_blocks, panels.GROUPS_OF_FOUR)
    fours = u.view(np.uint32).reshape(shape).transpose(0, 2, 3, 4, 1)
    integers = np.ascontiguousarray(fours).view(np.uint8)
    if ggml_type in _COMPACT:
        _, layout, blocks, fill = _COMPACT[ggml_type]
        units = out.view(layout).reshape(n_panels, n_units)
        fill(units, integers, np.ascontiguousarray(rows).view(blocks).reshape(len(rows), n_units), parts)
    else:
        layout = _wide_layout(panel)
        units = out.view(layout).reshape(n_panels, n_units)
        _fill_wide(units, integers, parts, panel)


def _by_panel(numbers: NDArray[Any]) -> NDArray[Any]:
    """[rows, n, ...] to [n_panels, n, ..., 16]."""
    grouped = numbers.reshape(-1, PANEL_ROWS, *numbers.shape[1:])
    return np.moveaxis(grouped, 1, -1)


def _low_nibbles(integers: Bytes) -> Bytes:
    low = integers & np.uint8(15)
    packed: Bytes = low[..., :4, :] | (low[..., 4:, :] << np.uint8(4))
    return packed


def _bit_plane(integers: Bytes) -> Bytes:
    """Bit 4 of the 8 groups, as bits 0 to 7."""
    plane = np.zeros((*integers.shape[:-2], panels.VECTOR_BYTES), np.uint8)
    for g in range(panels.GROUPS_OF_FOUR):
        plane |= ((integers[..., g, :] >> np.uint8(4)) & np.uint8(1)) << np.uint8(g)
    return plane


def _two_bit_planes(integers: Bytes) -> Bytes:
    """Bits 4 and 5 of the 8 groups: four groups a vector."""
    planes = np.zeros((*integers.shape[:-2], 2, panels.VECTOR_BYTES), np.uint8)
    for g in range(panels.GROUPS_OF_FOUR):
        planes[..., g // 4, :] |= ((integers[..., g, :] >> np.uint8(4)) & np.uint8(3)) << np.uint8(2 * (g % 4))
    return planes


def _fill_classic(units: NDArray[Any], integers: Bytes, blocks: NDArray[Any], parts: UnpackedBlocks) -> None:
    names = units.dtype.names or ()
    units["d"] = _by_panel(blocks["d"])
    if "m" in names:
        units["m"] = _by_panel(blocks["m"])
    flat = integers[:, :, 0]
    if "bytes" in names:
        units["bytes"] = flat
        return
    units["low"] = _low_nibbles(flat)
    if "fifth" in names:
        units["fifth"] = _bit_plane(flat)


def _fill_minimum(units: NDArray[Any], integers: Bytes, blocks: NDArray[Any], parts: UnpackedBlocks) -> None:
    for name in ("d", "dmin"):
        units[name] = _by_panel(blocks[name])
    scales, minima = k_quants.scales_and_minima(blocks["scales"])
    units["blocks"]["scale"] = _by_panel(scales)
    units["blocks"]["minimum"] = _by_panel(minima)
    units["blocks"]["low"] = _low_nibbles(integers)
    if "fifth" in (units.dtype["blocks"].base.names or ()):
        units["blocks"]["fifth"] = _bit_plane(integers)


def _fill_q6_k(units: NDArray[Any], integers: Bytes, blocks: NDArray[Any], parts: UnpackedBlocks) -> None:
    units["d"] = _by_panel(blocks["d"])
    scales = blocks["scales"].reshape(*blocks.shape, 8, 2)
    units["blocks"]["scale"] = _by_panel(scales)
    units["blocks"]["high"] = _two_bit_planes(integers)
    units["blocks"]["low"] = _low_nibbles(integers)


def _fill_wide(units: NDArray[Any], integers: Bytes, parts: UnpackedBlocks, panel: PanelFormat) -> None:
    for name, numbers in (("scale", parts.scales), ("offset", parts.offsets)):
        if numbers is not None:
            # A group of the file may be longer than one of the panel (Q8_K: 256 values).
            n_values = parts.quants.shape[1] * parts.quants.shape[2]
            repeats = n_values // (BLOCK // panel.n_groups) // numbers.shape[1]
            spread = np.repeat(numbers, repeats, axis=1)
            n_rows = units.shape[0] * PANEL_ROWS
            units[name] = _by_panel(spread.reshape(n_rows, units.shape[1], panel.n_groups))
    units["bytes"] = integers[:, :, 0]


def _classic_layout(*, offset: bool, fifth: bool, wide: bool = False) -> np.dtype[np.void]:
    fields: list[Any] = [("d", "<f2", PANEL_ROWS)]
    fields += [("m", "<f2", PANEL_ROWS)] if offset else []
    fields += [("fifth", "u1", panels.VECTOR_BYTES)] if fifth else []
    fields += [("bytes", "u1", (8, panels.VECTOR_BYTES))] if wide else [("low", "u1", (4, panels.VECTOR_BYTES))]
    return np.dtype(fields)


def _minimum_layout(*, fifth: bool) -> np.dtype[np.void]:
    block: list[Any] = [("scale", "u1", PANEL_ROWS), ("minimum", "u1", PANEL_ROWS)]
    block += [("fifth", "u1", panels.VECTOR_BYTES)] if fifth else []
    block += [("low", "u1", (4, panels.VECTOR_BYTES))]
    return np.dtype([("d", "<f2", PANEL_ROWS), ("dmin", "<f2", PANEL_ROWS), ("blocks", np.dtype(block), 8)])


_Q6_K_BLOCK = np.dtype(
    [
        ("scale", "i1", (2, PANEL_ROWS)),
        ("high", "u1", (2, panels.VECTOR_BYTES)),
        ("low", "u1", (4, panels.VECTOR_BYTES)),
    ]
)


def _wide_layout(panel: PanelFormat) -> np.dtype[np.void]:
    fields: list[Any] = [("scale", "<f4", (panel.n_groups, PANEL_ROWS))]
    fields += [("offset", "<f4", (panel.n_groups, PANEL_ROWS))] if panel.has_offset else []
    return np.dtype([*fields, ("bytes", "u1", (8, panels.VECTOR_BYTES))])


_COMPACT: Final[Mapping[GGMLType, tuple[PanelFormat, np.dtype[np.void], np.dtype[np.void], Fill]]] = MappingProxyType(
    {
        GGMLType.Q4_0: (panels.Q4_0, _classic_layout(offset=False, fifth=False), legacy.Q4_0, _fill_classic),
        GGMLType.Q4_1: (panels.Q4_1, _classic_layout(offset=True, fifth=False), legacy.Q4_1, _fill_classic),
        GGMLType.Q5_0: (panels.Q5_0, _classic_layout(offset=False, fifth=True), legacy.Q5_0, _fill_classic),
        GGMLType.Q5_1: (panels.Q5_1, _classic_layout(offset=True, fifth=True), legacy.Q5_1, _fill_classic),
        GGMLType.Q8_0: (panels.Q8_0, _classic_layout(offset=False, fifth=False, wide=True), legacy.Q8_0, _fill_classic),
        GGMLType.Q4_K: (panels.Q4_K, _minimum_layout(fifth=False), k_quants.Q4_K, _fill_minimum),
        GGMLType.Q5_K: (panels.Q5_K, _minimum_layout(fifth=True), k_quants.Q5_K, _fill_minimum),
        GGMLType.Q6_K: (
            panels.Q6_K,
            np.dtype([("d", "<f2", PANEL_ROWS), ("blocks", _Q6_K_BLOCK, 8)]),
            k_quants.Q6_K,
            _fill_q6_k,
        ),
    }
)


def _wide_groups() -> Mapping[GGMLType, tuple[int, bool]]:
    """For each other type: scales for 32 columns, and whether it has offsets."""
    found = {}
    for ggml_type in unpackable_types():
        if ggml_type not in _COMPACT:
            sample = _sample(ggml_type)
            found[ggml_type] = (max(1, BLOCK // sample.quants.shape[2]), sample.offsets is not None)
    return MappingProxyType(found)


def _sample(ggml_type: GGMLType) -> UnpackedBlocks:
    geometry = block_geometry(ggml_type)
    return unpack(ggml_type, np.zeros((1, geometry.n_bytes), np.uint8), geometry.n_values)


_WIDE_GROUPS: Final = _wide_groups()
