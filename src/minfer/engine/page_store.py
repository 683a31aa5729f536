"""What is in the pages of the KV cache: the rows of keys and values of all layers, in the memory of the backends.

Whoever calls a method holds the pool's lock, so that no step reads or writes the rows meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from minfer.backends.reference.rope import rope
from minfer.errors import ParameterError, UnsupportedError
from minfer.graph import PAGE_SIZE
from minfer.graph.ops import Rope
from minfer.quants import GGMLType, block_geometry, dequantise, quantise

_MOVED_AT_ONCE: Final = 8 * PAGE_SIZE
_BLOCK: Final = block_geometry(GGMLType.Q8_0).n_values


@dataclass(frozen=True)
class KVRegion:
    """A layer's keys or values."""

    rows: NDArray[np.uint8]
    """packed, (n_cells, n_kv_heads, row_bytes)"""
    width: int
    """values in a row"""
    ggml_type: GGMLType

    @property
    def cell_bytes(self) -> int:
        return int(self.rows[0].nbytes)


@dataclass(frozen=True)
class KVLayer:
    """A layer's two regions."""

    name: str
    k: KVRegion
    v: KVRegion
    rope: Rope | None
    """the rotation that keys go through right before they are stored"""


class PageStore:
    """The rows of all layers, page by page."""

    def __init__(self, layers: Sequence[KVLayer]) -> None:
        self._layers = tuple(layers)

    @property
    def layers(self) -> tuple[KVLayer, ...]:
        """None once the model is closed."""
        return self._layers

    @property
    def cache_types(self) -> tuple[GGMLType, GGMLType]:
        """Of keys and of values."""
        self._regions()
        return self._layers[0].k.ggml_type, self._layers[0].v.ggml_type

    @property
    def position_bytes(self) -> int:
        """Bytes that a position takes, in all layers."""
        return sum(layer.k.cell_bytes + layer.v.cell_bytes for layer in self._layers)

    def copy_page(self, source: int, target: int) -> None:
        """Copies the rows of a page in all layers.

        Raises:
            ParameterError: the model is closed.
        """
        for region in self._regions():
            pages = region.rows.reshape(-1, PAGE_SIZE, *region.rows.shape[1:])
            pages[target] = pages[source]

    def check_movable(self) -> None:
        """Refuses models whose keys can't be turned to other positions.

        Raises:
            UnsupportedError: the keys of a layer are not the direct result of a rotation.
        """
        for layer in self._layers:
            if layer.rope is None:
                raise UnsupportedError(
                    f"moving the keys of {layer.name}", hint="They are not stored as a rotation by position gave them"
                )

    def move_rows(self, sources: NDArray[np.int32], targets: NDArray[np.int32], n_positions: int) -> None:
        """Moves rows from cells to cells that are `n_positions` nearer to the beginning.

        Keys are turned by -n_positions: rotations add up, so that they end as if they had been rotated by the new
        position at once, up to rounding. The magnitude of YaRN is in them already. Packed keys are dequantised, turned
        in float64 and packed again. Values are copied. Cells come in the order of positions, and a target may be the
        source of an earlier row.

        Raises:
            UnsupportedError: see `check_movable`.
            ParameterError: the model is closed.
        """
        self._regions()
        self.check_movable()
        for start in range(0, len(sources), _MOVED_AT_ONCE):
            chunk = slice(start, start + _MOVED_AT_ONCE)
            for layer in self._layers:
                layer.v.rows[targets[chunk]] = layer.v.rows[sources[chunk]]
                assert layer.rope is not None
                layer.k.rows[targets[chunk]] = _turned(layer.k, sources[chunk], layer.rope, -n_positions)

    def close(self) -> None:
        """Lets go of the memory."""
        self._layers = ()

    def _regions(self) -> list[KVRegion]:
        if not self._layers:
            raise ParameterError("the model is closed")
        return [region for layer in self._layers for region in (layer.k, layer.v)]


def _turned(region: KVRegion, cells: NDArray[np.int32], op: Rope, n_positions: int) -> NDArray[np.uint8]:
    """The rows of some cells as they would be so many positions later, packed."""
    packed = region.rows[cells]
    rows = dequantise(region.ggml_type, packed, region.width)
    # All rows turn by one angle: as heads of a single token, its sine and cosine are computed once.
    as_heads = rows.reshape(1, -1, region.width)
    turned = rope(replace(op, magnitude=1.0), as_heads, np.array([n_positions], np.int32))
    return _packed(region.ggml_type, turned.reshape(rows.shape)).reshape(packed.shape)


def _packed(ggml_type: GGMLType, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows in the type of a region, as a KVStore packs them; what is not a finite number stays visible."""
    match ggml_type:
        case GGMLType.F32:
            return rows.view(np.uint8)
        case GGMLType.F16:
            with np.errstate(over="ignore"):
                return rows.astype(np.float16).view(np.uint8)
        case GGMLType.Q8_0:
            blocks = rows.reshape(-1, _BLOCK)
            broken = np.logical_not(np.isfinite(blocks).all(axis=1))
            packed = quantise(ggml_type, np.where(broken[:, np.newaxis], np.float32(0), blocks))
            packed[broken, :2] = np.array([np.nan], np.float16).view(np.uint8)
            return packed
        case _:
            raise UnsupportedError(f"moving keys in {ggml_type.name}")
