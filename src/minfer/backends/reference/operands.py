"""What the reference kernels compute on besides plain arrays: weights and KV regions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.base import WeightSource
from minfer.graph import TensorSpec
from minfer.graph.ops import Op
from minfer.quants import GGMLType, dequantise, quantise, row_bytes

Array32 = NDArray[np.float32]
Array64 = NDArray[np.float64]
Indices = NDArray[np.int32]

Kernels = Mapping[type[Op], Callable[..., Any]]
"""Which function defines which op. It is called with the op and its operands (arrays, `Weight`s, `Region`s) and returns
its output, or a tuple of its outputs, as new arrays."""


class WeightCache:
    """Dequantised weights in float64, up to `max_bytes`.

    It fills up and evicts nothing: every step reads the weights in the same cyclic order, in which dropping the least
    recently used one would drop each just before its next use. What does not fit is dequantised again every time.
    """

    def __init__(self, source: WeightSource, max_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._kept: dict[str, Array64] = {}
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def packed(self, name: str) -> NDArray[np.uint8]:
        return self._source.packed(name)

    def dequantised(self, name: str, spec: TensorSpec) -> Array64:
        """The whole tensor in float64, read-only."""
        kept = self._kept.get(name)
        if kept is not None:
            return kept
        width = spec.shape[-1]
        array = dequantise(spec.ggml_type, self._source.packed(name), int(width)).astype(np.float64)
        array.setflags(write=False)
        self._source.release(name)
        with self._lock:
            if self._n_bytes + array.nbytes <= self._max_bytes and name not in self._kept:
                self._kept[name] = array
                self._n_bytes += array.nbytes
        return array


class Weight:
    """A weight as a kernel sees it."""

    def __init__(self, name: str, spec: TensorSpec, cache: WeightCache) -> None:
        self._name = name
        self._spec = spec
        self._cache = cache

    def dequantised(self) -> Array64:
        """All of it in float64."""
        return self._cache.dequantised(self._name, self._spec)

    def rows(self, indices: Indices) -> Array32:
        """Some of its rows in float32."""
        packed = self._cache.packed(self._name)[indices]
        return dequantise(self._spec.ggml_type, packed, int(self._spec.shape[-1]))


class Region:
    """One layer's keys or values: packed rows [n_cells, n_kv_heads, row_bytes], persistent.

    Rows are written and read in the region's own type. Memory is only touched, and so only taken from the system, where
    cells are used.
    """

    def __init__(self, n_cells: int, n_kv_heads: int, width: int, ggml_type: GGMLType) -> None:
        self._width = width
        self._type = ggml_type
        self.packed: NDArray[np.uint8] = np.zeros((n_cells, n_kv_heads, row_bytes(ggml_type, width)), np.uint8)

    def write(self, cells: Indices, rows: Array32) -> None:
        """Stores rows f32[n, n_kv_heads, width]."""
        if self._type is GGMLType.F32:
            self.packed[cells] = np.ascontiguousarray(rows).view(np.uint8)
        else:
            self.packed[cells] = quantise(self._type, np.ascontiguousarray(rows))

    def read(self, cells: NDArray[np.integer]) -> Array64:
        """The rows of some cells in float64 [n, n_kv_heads, width]."""
        return dequantise(self._type, self.packed[cells], self._width).astype(np.float64)
