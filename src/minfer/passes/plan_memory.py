"""plan_memory: gives every computed value a place in its backend's arena.

Liveness: a storage is needed from the node that first writes it to the last that reads it. The largest are placed
first, each at the lowest offset where it overlaps nothing that lives at the same time (greedy by size: Pisarchyk and
Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). KV regions are persistent and not in the arena.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from minfer.errors import GraphError
from minfer.graph import Graph, MemoryPlan, Placement, ValueId, last_uses
from minfer.passes.context import PassContext

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass(frozen=True)
class _Interval:
    storage: ValueId
    backend: str
    first: int
    last: int
    n_bytes: int


def plan_memory(graph: Graph, context: PassContext) -> Graph:
    """Sets `graph.memory`, for steps of up to the sizes in `context.bounds`."""
    intervals = sorted(_intervals(graph, context), key=lambda i: (-i.n_bytes, i.first, i.storage))
    placed: dict[str, list[tuple[_Interval, int]]] = {}
    arena_bytes = {backend.name: 0 for backend in context.backends}
    placements: dict[ValueId, Placement] = {}
    for interval in intervals:
        neighbours = placed.setdefault(interval.backend, [])
        offset = _lowest_gap(interval, neighbours)
        neighbours.append((interval, offset))
        arena_bytes[interval.backend] = max(arena_bytes[interval.backend], offset + interval.n_bytes)
        placements[interval.storage] = Placement(offset, interval.n_bytes)
    for node in graph.nodes:
        for value_id in node.outputs:
            placements[value_id] = placements[graph.storage(value_id)]
    return replace(graph, memory=MemoryPlan(MappingProxyType(arena_bytes), MappingProxyType(placements)))


def _intervals(graph: Graph, context: PassContext) -> list[_Interval]:
    last = last_uses(graph)
    found: dict[ValueId, _Interval] = {}
    for index, node in enumerate(graph.nodes):
        if node.backend is None:
            raise GraphError(f"{node.name} has no backend")
        for value_id in node.outputs:
            storage = graph.storage(value_id)
            n_bytes = -(-graph.value(value_id).spec.n_bytes(context.bounds) // ALIGNMENT) * ALIGNMENT
            if storage not in found:
                found[storage] = _Interval(storage, node.backend, index, last[storage], n_bytes)
            elif found[storage].n_bytes < n_bytes:
                raise GraphError(f"{graph.value(value_id).name} is larger than the storage it shares")
    return list(found.values())


def _lowest_gap(interval: _Interval, placed: list[tuple[_Interval, int]]) -> int:
    busy = sorted(
        (offset, offset + other.n_bytes)
        for other, offset in placed
        if other.first <= interval.last and interval.first <= other.last
    )
    offset = 0
    for start, end in busy:
        if offset + interval.n_bytes <= start:
            break
        offset = max(offset, end)
    return offset
