"""split: puts a copy wherever a node reads what another backend made.

It stands before `alias` and `plan_memory`, because copies need storage too. `segments` then cuts the nodes into runs of
one backend each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minfer.errors import GraphError
from minfer.graph import Graph, Node, Value, ValueId, ValueKind, verify_split
from minfer.graph.ops import Copy
from minfer.passes.context import PassContext


@dataclass(frozen=True)
class Segment:
    """A run of consecutive nodes of one backend, or one copy between two."""

    backend: str
    nodes: range
    is_copy: bool = False


def split(graph: Graph, context: PassContext) -> Graph:
    """Inserts copies: at most one for each value and backend."""
    home: dict[ValueId, str | None] = {}
    copies: dict[tuple[ValueId, str | None], ValueId] = {}
    next_id = graph.next_id()
    nodes: list[Node] = []
    new_values: list[Value] = []
    for node in graph.nodes:
        inputs = []
        for value_id in node.inputs:
            value = graph.value(value_id)
            if value.kind is not ValueKind.COMPUTED or home[value_id] == node.backend:
                inputs.append(value_id)
                continue
            key = (value_id, node.backend)
            if key not in copies:
                copy = replace(value, id=next_id, name=f"{value.name}@{node.backend}")
                next_id += 1
                new_values.append(copy)
                copies[key] = copy.id
                name = f"copy.{copy.name}"
                nodes.append(Node(Copy(), (value_id,), (copy.id,), name, node.layer, node.backend))
            inputs.append(copies[key])
        nodes.append(replace(node, inputs=tuple(inputs)))
        home.update(dict.fromkeys(node.outputs, node.backend))
    result = graph.with_nodes(nodes, new_values)
    verify_split(result)
    return result


def segments(graph: Graph) -> tuple[Segment, ...]:
    """The graph cut into runs of one backend, in running order."""
    found: list[Segment] = []
    for index, node in enumerate(graph.nodes):
        if node.backend is None:
            raise GraphError(f"{node.name} has no backend")
        is_copy = node.op.is_transfer
        last = found[-1] if found else None
        if last is not None and not is_copy and not last.is_copy and last.backend == node.backend:
            found[-1] = replace(last, nodes=range(last.nodes.start, index + 1))
        else:
            found.append(Segment(node.backend, range(index, index + 1), is_copy))
    return tuple(found)
