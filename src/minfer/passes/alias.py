"""alias: lets values share storage where nothing is lost by it.

A view lives where its input does. An op that may work in place takes over the storage of an input that nobody reads
afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from minfer.graph import Graph, Node, ValueId, ValueKind
from minfer.passes.context import PassContext


def alias(graph: Graph, context: PassContext) -> Graph:
    """Sets `graph.aliases`."""
    consumers = graph.consumers()
    results = set(graph.outputs.values())
    storage: dict[ValueId, ValueId] = {}  # computed value -> the first value of the storage it lives in
    members: dict[ValueId, list[ValueId]] = {}
    home: dict[ValueId, str | None] = {}
    aliases: dict[ValueId, ValueId] = {}

    def dies_at(value_id: ValueId, index: int, node: Node) -> bool:
        """Whether nothing needs the storage of this input once the node has run, and no other input lives there."""
        sharing = members[storage[value_id]]
        read_later = any(consumers.get(member, [-1])[-1] > index or member in results for member in sharing)
        others = [i for i in node.inputs if i in storage and storage[i] == storage[value_id]]
        return not read_later and others == [value_id]

    for index, node in enumerate(graph.nodes):
        target: ValueId | None = None
        if node.op.is_view:
            target = node.inputs[0] if graph.value(node.inputs[0]).kind is ValueKind.COMPUTED else None
        else:
            for position in node.op.in_place_inputs:
                value_id = node.inputs[position]
                computed = graph.value(value_id).kind is ValueKind.COMPUTED
                if computed and home[storage[value_id]] == node.backend and dies_at(value_id, index, node):
                    target = value_id
                    break
        for position, value_id in enumerate(node.outputs):
            if position == 0 and target is not None:
                root = storage[target]
                aliases[value_id] = root
            else:
                root = value_id
                home[root] = node.backend
            storage[value_id] = root
            members.setdefault(root, []).append(value_id)
    return replace(graph, aliases=MappingProxyType(aliases))
