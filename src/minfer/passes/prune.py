"""prune: drops nodes whose results nobody reads, and values that no node touches."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from minfer.graph import Graph, ValueKind
from minfer.passes.context import PassContext


def prune(graph: Graph, context: PassContext) -> Graph:
    """Keeps what the outputs and the nodes that write state need."""
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if node.op.states_written or needed.intersection(node.outputs):
            needed.update(node.inputs, node.outputs)
            kept.append(node)
    pruned = graph.with_nodes(reversed(kept))
    values = {i: v for i, v in pruned.values.items() if i in needed or v.kind is ValueKind.STATE}
    return replace(pruned, values=MappingProxyType(values))
