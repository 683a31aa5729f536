"""What is in the pages of the KV cache: the rows of keys and values of all layers, in the memory of the backends.

Whoever calls a method holds the pool's lock, so that no step reads or writes the rows meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.graph import PAGE_SIZE
from minfer.graph.ops import Rope
from minfer.quants import GGMLType


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

    def close(self) -> None:
        """Lets go of the memory."""
        self._layers = ()

    def _regions(self) -> list[KVRegion]:
        if not self._layers:
            raise ParameterError("the model is closed")
        return [region for layer in self._layers for region in (layer.k, layer.v)]
