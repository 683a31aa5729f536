"""assign: gives every node a backend, the first in order of preference that supports it.

All nodes that touch one KV region go to one backend, since a region lives in one place.
"""

from __future__ import annotations

from dataclasses import replace

from minfer.errors import UnsupportedError
from minfer.graph import Graph, Node, ValueKind
from minfer.passes.context import PassContext


def assign(graph: Graph, context: PassContext) -> Graph:
    """Assigns backends.

    Raises:
        UnsupportedError: no backend supports a node; the message gives each one's reason.
    """
    groups = _groups_by_state(graph)
    chosen: dict[tuple[int, ...], str] = {}
    nodes = []
    for index, node in enumerate(graph.nodes):
        group = groups[index]
        if group not in chosen:
            chosen[group] = _choose(graph, [graph.nodes[i] for i in group], context)
        nodes.append(replace(node, backend=chosen[group]))
    return graph.with_nodes(nodes)


def _groups_by_state(graph: Graph) -> dict[int, tuple[int, ...]]:
    """For each node, the nodes that must share its backend: itself, and those that use the same KV regions."""
    users: dict[int, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for value_id in node.inputs:
            if graph.value(value_id).kind is ValueKind.STATE:
                users.setdefault(value_id, []).append(index)
    groups = {}
    for index, node in enumerate(graph.nodes):
        regions = [i for i in node.inputs if graph.value(i).kind is ValueKind.STATE]
        groups[index] = tuple(sorted({user for region in regions for user in users[region]})) or (index,)
    return groups


def _choose(graph: Graph, nodes: list[Node], context: PassContext) -> str:
    reasons = []
    for backend in context.backends:
        refusals = ((node, backend.refusal(node.op, graph.specs(node.inputs))) for node in nodes)
        refused = next(((node, reason) for node, reason in refusals if reason is not None), None)
        if refused is None:
            return backend.name
        node, reason = refused
        reasons.append(f"{backend.name}, for {node.op.kind} ({node.name}): {reason}")
    names = " with ".join(f"{node.op.kind} ({node.name})" for node in nodes)
    raise UnsupportedError(names, hint=f"Refused by {'; '.join(reasons)}")
