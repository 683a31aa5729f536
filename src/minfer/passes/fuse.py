"""fuse: puts neighbouring ops into one, where the backend of the nodes has the fused op.

A fused op gives the same bits as its parts. What it saves is a trip through memory, or a pass over the activations.
Each fusion keeps the ids of the values that live on, so the names in a trace stay.
"""

from __future__ import annotations

from dataclasses import replace

from minfer.graph import Graph, Node, ValueId
from minfer.graph.ops import (
    Activation,
    Add,
    AddRMSNorm,
    GatedActivation,
    GatedMatMul,
    MatMul,
    MatMulGroup,
    Multiply,
    Op,
    RMSNorm,
)
from minfer.passes.context import PassContext


def fuse_gated_activation(graph: Graph, context: PassContext) -> Graph:
    """activation(gate) * up becomes one op (SwiGLU, with SiLU): the activated gate is not written out."""
    nodes: dict[int, Node | None] = dict(enumerate(graph.nodes))
    for index, node in enumerate(graph.nodes):
        if not isinstance(node.op, Multiply):
            continue
        for gate, up in (node.inputs, node.inputs[::-1]):
            made_at = _only_made_for(graph, gate, index)
            activation = graph.nodes[made_at] if made_at is not None else None
            if made_at is None or activation is None or not isinstance(activation.op, Activation) or gate == up:
                continue
            fused = GatedActivation(activation.op.activation)
            if _fusable(graph, context, node, (activation,), fused, (activation.inputs[0], up)):
                nodes[made_at] = None
                nodes[index] = replace(node, op=fused, inputs=(activation.inputs[0], up))
                break
    return graph.with_nodes(node for node in nodes.values() if node)


def fuse_gated_matmul(graph: Graph, context: PassContext) -> Graph:
    """The gate and up projections of one x with the gated activation become one op: x is read once."""
    nodes: dict[int, Node | None] = dict(enumerate(graph.nodes))
    for index, node in enumerate(graph.nodes):
        if not isinstance(node.op, GatedActivation):
            continue
        made_at = [_only_made_for(graph, value_id, index) for value_id in node.inputs]
        if None in made_at:
            continue
        gate, up = (graph.nodes[i] for i in made_at if i is not None)
        if gate.op != MatMul() or up.op != MatMul() or gate.inputs[0] != up.inputs[0] or gate is up:
            continue
        fused = GatedMatMul(node.op.activation)
        inputs = (gate.inputs[0], gate.inputs[1], up.inputs[1])
        if _fusable(graph, context, node, (gate, up), fused, inputs):
            for i in made_at:
                if i is not None:
                    nodes[i] = None
            nodes[index] = replace(node, op=fused, inputs=inputs, name=f"{gate.name}+{up.name}")
    return graph.with_nodes(node for node in nodes.values() if node)


def fuse_add_norm(graph: Graph, context: PassContext) -> Graph:
    """A residual addition and the norm that reads it become one op: the sum is normalised while it is in cache."""
    nodes: dict[int, Node | None] = dict(enumerate(graph.nodes))
    consumers = graph.consumers()
    for index, node in enumerate(graph.nodes):
        if not isinstance(node.op, Add):
            continue
        for reader in consumers.get(node.outputs[0], ()):
            norm = graph.nodes[reader]
            if not isinstance(norm.op, RMSNorm) or norm.inputs[0] != node.outputs[0]:
                continue
            fused = AddRMSNorm(norm.op.eps)
            inputs = (*node.inputs, norm.inputs[1])
            if _fusable(graph, context, node, (norm,), fused, inputs):
                outputs = (*node.outputs, *norm.outputs)
                nodes[index] = replace(node, op=fused, inputs=inputs, outputs=outputs, name=f"{node.name}+{norm.name}")
                nodes[reader] = None
                break
    return graph.with_nodes(node for node in nodes.values() if node)


def fuse_matmul_group(graph: Graph, context: PassContext) -> Graph:
    """Matrix products of one x (q, k and v) become one op: x is read and quantised once, and threads meet once."""
    nodes: dict[int, Node | None] = dict(enumerate(graph.nodes))
    for readers in graph.consumers().values():
        members = [i for i in readers if isinstance(graph.nodes[i].op, MatMul)]
        members = [i for i in members if graph.nodes[i].inputs[0] == graph.nodes[members[0]].inputs[0]]
        if len(members) < 2:
            continue
        parts = [graph.nodes[i] for i in members]
        fused = MatMulGroup(tuple(len(part.inputs) == 3 for part in parts))
        weights = tuple(part.inputs[1] for part in parts)
        biases = tuple(part.inputs[2] for part in parts if len(part.inputs) == 3)
        inputs = (parts[0].inputs[0], *weights, *biases)
        if _fusable(graph, context, parts[0], parts[1:], fused, inputs):
            outputs = tuple(part.outputs[0] for part in parts)
            name = "+".join(part.name for part in parts)
            nodes[members[0]] = replace(parts[0], op=fused, inputs=inputs, outputs=outputs, name=name)
            nodes.update(dict.fromkeys(members[1:]))
    return graph.with_nodes(node for node in nodes.values() if node)


def _only_made_for(graph: Graph, value_id: ValueId, reader: int) -> int | None:
    """The index of the node that makes a value, if `reader` is all that it is made for."""
    if value_id in graph.outputs.values() or graph.consumers().get(value_id) != [reader]:
        return None
    return graph.producers().get(value_id)


def _fusable(
    graph: Graph,
    context: PassContext,
    node: Node,
    others: tuple[Node, ...] | list[Node],
    op: Op,
    inputs: tuple[ValueId, ...],
) -> bool:
    same_place = all(other.backend == node.backend for other in others)
    return same_place and context.supports(graph, node, op, inputs)
