"""fuse: puts neighbouring ops into one, where the backend of the nodes has the fused op.

A fused op gives the same bits as its parts. What it saves is a trip through memory, or a pass over the activations.
Each fusion keeps the ids of the values that live on, so the names in a trace stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    makers = _private_makers(graph)
    changed: dict[str, Node | None] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Multiply):
            continue
        for gate, up in (node.inputs, node.inputs[::-1]):
            activation = makers.get(gate)
            if activation is None or not isinstance(activation.op, Activation) or gate == up:
                continue
            fused, inputs = GatedActivation(activation.op.activation), (activation.inputs[0], up)
            if _fusable(graph, context, (node, activation), fused, inputs):
                changed[activation.name] = None
                changed[node.name] = replace(node, op=fused, inputs=inputs)
                break
    return _rewritten(graph, changed)


def fuse_gated_matmul(graph: Graph, context: PassContext) -> Graph:
    """The gate and up projections of one x with the gated activation become one op: x is read once."""
    makers = _private_makers(graph)
    changed: dict[str, Node | None] = {}
    for node in graph.nodes:
        if not isinstance(node.op, GatedActivation):
            continue
        gate, up = (makers.get(value_id) for value_id in node.inputs)
        if gate is None or up is None or gate is up or gate.op != MatMul() or up.op != MatMul():
            continue
        x, gate_weight = gate.inputs
        fused, inputs = GatedMatMul(node.op.activation), (x, gate_weight, up.inputs[1])
        if up.inputs[0] == x and _fusable(graph, context, (node, gate, up), fused, inputs):
            changed |= {gate.name: None, up.name: None}
            changed[node.name] = replace(node, op=fused, inputs=inputs, name=f"{gate.name}+{up.name}")
    return _rewritten(graph, changed)


def fuse_add_norm(graph: Graph, context: PassContext) -> Graph:
    """A residual addition and the norm that reads it become one op: the sum is normalised while it is in cache."""
    changed: dict[str, Node | None] = {}
    consumers = graph.consumers()
    for node in graph.nodes:
        if not isinstance(node.op, Add):
            continue
        for norm in (graph.nodes[reader] for reader in consumers.get(node.outputs[0], ())):
            if not isinstance(norm.op, RMSNorm) or norm.inputs[0] != node.outputs[0]:
                continue
            fused, inputs = AddRMSNorm(norm.op.eps), (*node.inputs, norm.inputs[1])
            if _fusable(graph, context, (node, norm), fused, inputs):
                outputs = (*node.outputs, *norm.outputs)
                name = f"{node.name}+{norm.name}"
                changed[node.name] = replace(node, op=fused, inputs=inputs, outputs=outputs, name=name)
                changed[norm.name] = None
                break
    return _rewritten(graph, changed)


def fuse_matmul_group(graph: Graph, context: PassContext) -> Graph:
    """Matrix products of one x (q, k and v) become one op: x is read and quantised once, and threads meet once."""
    changed: dict[str, Node | None] = {}
    for x, readers in graph.consumers().items():
        parts = [graph.nodes[i] for i in readers]
        parts = [part for part in parts if isinstance(part.op, MatMul) and part.inputs[0] == x]
        if len(parts) < 2:
            continue
        first = parts[0]
        fused = MatMulGroup(tuple(len(part.inputs) == 3 for part in parts))
        weights = tuple(part.inputs[1] for part in parts)
        biases = tuple(part.inputs[2] for part in parts if len(part.inputs) == 3)
        inputs = (x, *weights, *biases)
        if _fusable(graph, context, parts, fused, inputs):
            outputs = tuple(part.outputs[0] for part in parts)
            name = "+".join(part.name for part in parts)
            changed |= dict.fromkeys(part.name for part in parts)
            changed[first.name] = replace(first, op=fused, inputs=inputs, outputs=outputs, name=name)
    return _rewritten(graph, changed)


def _private_makers(graph: Graph) -> dict[ValueId, Node]:
    """For each value that one node reads, and that is no output of the graph: the node that makes it."""
    consumers, results = graph.consumers(), set(graph.outputs.values())
    return {
        value_id: node
        for node in graph.nodes
        for value_id in node.outputs
        if len(consumers.get(value_id, ())) == 1 and value_id not in results
    }


def _fusable(graph: Graph, context: PassContext, nodes: Sequence[Node], op: Op, inputs: tuple[ValueId, ...]) -> bool:
    """Whether the nodes all run on one backend, and it can run `op` on `inputs`."""
    same_place = all(node.backend == nodes[0].backend for node in nodes)
    return same_place and context.supports(graph, nodes[0], op, inputs)


def _rewritten(graph: Graph, changed: Mapping[str, Node | None]) -> Graph:
    """The graph with some nodes, by name, replaced or (None) dropped."""
    nodes = (changed.get(node.name, node) for node in graph.nodes)
    return graph.with_nodes(node for node in nodes if node is not None)
