"""The intermediate representation: an immutable list of nodes over values, in the order in which they run.

Passes take a graph and return a new one. Order is part of the meaning: a node that writes state (`KVStore`) comes
before the nodes that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from minfer.graph.ops import Op
from minfer.graph.specs import TensorSpec

ValueId = int


class ValueKind(StrEnum):
    """Where a value comes from."""

    INPUT = "input"
    """handed in with every step"""
    WEIGHT = "weight"
    """a tensor of the model file, named as there"""
    STATE = "state"
    """a persistent region of the KV cache: it outlives the step and never moves"""
    COMPUTED = "computed"
    """the output of a node"""


@dataclass(frozen=True)
class Value:
    """One tensor of a graph."""

    id: ValueId
    name: str
    kind: ValueKind
    spec: TensorSpec


@dataclass(frozen=True)
class Node:
    """One application of an op."""

    op: Op
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    name: str
    layer: int | None = None
    backend: str | None = None
    """the backend that runs it; set by the pass `assign`"""


@dataclass(frozen=True)
class Placement:
    """Where a computed value lies: bytes [offset, offset + n_bytes) of its backend's arena."""

    offset: int
    n_bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """The arenas. Values that share storage have the same placement; persistent state is not in an arena."""

    arena_bytes: Mapping[str, int]
    """for each backend, the size of its arena"""
    placements: Mapping[ValueId, Placement]


def _empty_aliases() -> Mapping[ValueId, ValueId]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Graph:
    """A compute graph: values, nodes in running order, and the values to hand back."""

    values: Mapping[ValueId, Value]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, ValueId]
    aliases: Mapping[ValueId, ValueId] = field(default_factory=_empty_aliases)
    """for each value that lives in another's storage, that other value; set by the pass `alias`"""
    memory: MemoryPlan | None = None
    """set by the pass `plan_memory`"""

    def value(self, value_id: ValueId) -> Value:
        return self.values[value_id]

    def storage(self, value_id: ValueId) -> ValueId:
        """The value in whose storage this one lives: itself, unless it is aliased."""
        while value_id in self.aliases:
            value_id = self.aliases[value_id]
        return value_id

    def specs(self, value_ids: Iterable[ValueId]) -> tuple[TensorSpec, ...]:
        return tuple(self.values[i].spec for i in value_ids)

    def of_kind(self, kind: ValueKind) -> Iterator[Value]:
        return (value for value in self.values.values() if value.kind is kind)

    def producers(self) -> dict[ValueId, int]:
        """For each computed value, the index of the node that makes it."""
        return {value_id: index for index, node in enumerate(self.nodes) for value_id in node.outputs}

    def consumers(self) -> dict[ValueId, list[int]]:
        """For each value, the indices of the nodes that read it, in order. Unread values are missing."""
        uses: dict[ValueId, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for value_id in dict.fromkeys(node.inputs):
                uses.setdefault(value_id, []).append(index)
        return uses

    def with_nodes(self, nodes: Iterable[Node], new_values: Iterable[Value] = ()) -> Graph:
        """This graph with other nodes; computed values that no node makes any more are dropped."""
        kept_nodes = tuple(nodes)
        made = {value_id for node in kept_nodes for value_id in node.outputs}
        values = dict(self.values) | {value.id: value for value in new_values}
        kept = {i: v for i, v in values.items() if v.kind is not ValueKind.COMPUTED or i in made}
        return replace(self, values=MappingProxyType(kept), nodes=kept_nodes)

    def next_id(self) -> ValueId:
        """An id that no value has."""
        return max(self.values, default=-1) + 1
