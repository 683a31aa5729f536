"""KVStore: row t of k and v goes to cell cells[t] of the layer's regions, in their type."""

from __future__ import annotations

from types import MappingProxyType

from minfer.backends.reference.operands import Array32, Indices, Kernels, Region
from minfer.graph.ops import KVStore


def kv_store(op: KVStore, k: Array32, v: Array32, cells: Indices, k_region: Region, v_region: Region) -> tuple[()]:
    k_region.write(cells, k)
    v_region.write(cells, v)
    return ()


KERNELS: Kernels = MappingProxyType({KVStore: kv_store})
