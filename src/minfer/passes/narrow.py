"""narrow: computes only the rows that are wanted.

Most tokens of a prompt are there for their keys and values; logits are wanted of the last one. The model is declared
with one selection of rows, before the output norm. What the selected value is made of, and nothing else reads, needs
no other rows: the selection moves up, above every op that works row by row, until it meets attention. A prompt's
last feed-forward and output projection then cost next to nothing.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from minfer.graph import Graph, Node, Value, ValueId, ValueKind
from minfer.passes.context import PassContext


def narrow(graph: Graph, context: PassContext) -> Graph:
    """Moves selections of rows up. A row has the same bits as before."""
    for selected in [node.outputs for node in graph.nodes if node.op.selects_rows]:
        (selection,) = (node for node in graph.nodes if node.outputs == selected)
        cone = _cone(graph, selection)
        if cone:
            graph = _moved_up(graph, selection, cone)
    return graph


def _cone(graph: Graph, selection: Node) -> frozenset[int]:
    """The nodes that work row by row, and whose results reach nothing but the selection."""
    consumers = graph.consumers()
    wanted = set(graph.outputs.values())
    inside = {graph.nodes.index(selection)}
    for index in range(min(inside) - 1, -1, -1):
        node = graph.nodes[index]
        readers = {reader for value_id in node.outputs for reader in consumers.get(value_id, ())}
        if _can_be_narrowed(graph, node) and readers and readers <= inside and wanted.isdisjoint(node.outputs):
            inside.add(index)
    return frozenset(inside - {graph.nodes.index(selection)})


def _can_be_narrowed(graph: Graph, node: Node) -> bool:
    """Whether the node works row by row on what other nodes make: rows are not selected of the step's inputs."""
    kinds = {graph.value(value_id).kind for value_id in node.inputs} - {ValueKind.WEIGHT}
    return node.op.row_wise and kinds == {ValueKind.COMPUTED}


def _moved_up(graph: Graph, selection: Node, cone: frozenset[int]) -> Graph:
    selected, rows = selection.inputs
    made_inside = {value_id for index in cone for value_id in graph.nodes[index].outputs}
    values = dict(graph.values)
    next_id = graph.next_id()
    narrowed: dict[ValueId, ValueId] = {}
    nodes: list[Node] = []
    for index, node in enumerate(graph.nodes):
        if node is selection:
            continue
        if index not in cone:
            swapped = tuple(selected if i in selection.outputs else i for i in node.inputs)
            nodes.append(node if swapped == node.inputs else replace(node, inputs=swapped))
            continue
        for value_id in dict.fromkeys(node.inputs):
            value = values[value_id]
            if value.kind is ValueKind.COMPUTED and value_id not in made_inside and value_id not in narrowed:
                name = f"{value.name}.{selection.name}"
                (spec,) = selection.op.output_specs([value.spec, values[rows].spec])
                values[next_id] = Value(next_id, name, ValueKind.COMPUTED, spec)
                nodes.append(
                    replace(selection, inputs=(value_id, rows), outputs=(next_id,), name=name, layer=node.layer)
                )
                narrowed[value_id] = next_id
                next_id += 1
        nodes.append(_narrow_node(node, narrowed, values))
    outputs = {name: selected if i in selection.outputs else i for name, i in graph.outputs.items()}
    return replace(graph, values=MappingProxyType(values), outputs=MappingProxyType(outputs)).with_nodes(nodes)


def _narrow_node(node: Node, narrowed: dict[ValueId, ValueId], values: dict[ValueId, Value]) -> Node:
    """The node on selected rows; what it makes changes its shape in `values`, and keeps its id and name."""
    inputs = tuple(narrowed.get(i, i) for i in node.inputs)
    n_rows = next(values[i].spec.shape[0] for i in inputs if values[i].kind is ValueKind.COMPUTED)
    op = node.op.with_rows(n_rows)
    specs = op.output_specs([values[i].spec for i in inputs])
    for value_id, spec in zip(node.outputs, specs, strict=True):
        values[value_id] = replace(values[value_id], spec=spec)
    return replace(node, op=op, inputs=inputs)
