"""A graph as text, Graphviz DOT and JSON."""

from __future__ import annotations

import json
from typing import Any

from minfer.graph.ir import Graph, Node, ValueId, ValueKind
from minfer.graph.specs import Symbol


def to_text(graph: Graph) -> str:
    """One line a node: outputs = op(inputs), with backend, layer and storage where a pass has decided them."""
    lines = []
    for node in graph.nodes:
        outputs = ", ".join(f"{graph.value(i).name}: {graph.value(i).spec}" for i in node.outputs) or "-"
        inputs = ", ".join(graph.value(i).name for i in node.inputs)
        notes = [f"@{node.backend}"] if node.backend else []
        for value_id in node.outputs:
            if value_id in graph.aliases:
                notes.append(f"in {graph.value(graph.storage(value_id)).name}")
            if graph.memory is not None:
                place = graph.memory.placements[value_id]
                notes.append(f"[{place.offset}+{place.n_bytes}]")
        lines.append(f"{outputs} = {node.op!r}({inputs})" + ("  " + " ".join(notes) if notes else ""))
    for name, value_id in graph.outputs.items():
        lines.append(f"output {name} = {graph.value(value_id).name}")
    if graph.memory is not None:
        lines += [f"arena of {name}: {n_bytes} bytes" for name, n_bytes in graph.memory.arena_bytes.items()]
    return "\n".join(lines)


def to_dot(graph: Graph) -> str:
    """Graphviz: boxes are ops, ellipses are weights and state, one cluster a layer."""
    lines = ["digraph minfer {", "  rankdir=TB; node [fontname=Helvetica, fontsize=10];"]
    producers = graph.producers()

    def source(value_id: ValueId) -> str:
        return f"n{producers[value_id]}" if value_id in producers else f"v{value_id}"

    by_layer: dict[int | None, list[tuple[int, Node]]] = {}
    for index, node in enumerate(graph.nodes):
        by_layer.setdefault(node.layer, []).append((index, node))
    for layer, members in by_layer.items():
        indent = "  " if layer is None else "    "
        if layer is not None:
            lines.append(f'  subgraph cluster_{layer} {{ label="layer {layer}";')
        for index, node in members:
            label = f"{node.op.kind}\\n{node.name}" + (f"\\n@{node.backend}" if node.backend else "")
            lines.append(f'{indent}n{index} [shape=box, label="{label}"];')
        if layer is not None:
            lines.append("  }")
    for value in graph.values.values():
        if value.kind is not ValueKind.COMPUTED:
            shape = "cylinder" if value.kind is ValueKind.STATE else "ellipse"
            lines.append(f'  v{value.id} [shape={shape}, label="{value.name}\\n{value.spec}"];')
    for index, node in enumerate(graph.nodes):
        for value_id in node.inputs:
            shown = str(graph.value(value_id).spec) if value_id in producers else ""
            lines.append(f'  {source(value_id)} -> n{index} [label="{shown}", fontsize=8];')
    for name, value_id in graph.outputs.items():
        lines.append(f'  "out_{name}" [shape=ellipse, label="{name}"]; {source(value_id)} -> "out_{name}";')
    return "\n".join([*lines, "}"])


def to_json(graph: Graph) -> str:
    """A JSON object with `values`, `nodes`, `outputs` and, once planned, `memory`."""
    document: dict[str, Any] = {
        "values": [
            {
                "id": value.id,
                "name": value.name,
                "kind": value.kind.value,
                "shape": [str(dim) if isinstance(dim, Symbol) else dim for dim in value.spec.shape],
                "type": value.spec.ggml_type.name,
                "storage": graph.storage(value.id),
            }
            for value in graph.values.values()
        ],
        "nodes": [
            {
                "name": node.name,
                "op": node.op.kind,
                "attributes": {key: _plain(item) for key, item in vars(node.op).items()},
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
                "layer": node.layer,
                "backend": node.backend,
            }
            for node in graph.nodes
        ],
        "outputs": dict(graph.outputs),
    }
    if graph.memory is not None:
        document["memory"] = {
            "arena_bytes": dict(graph.memory.arena_bytes),
            "placements": {str(i): [p.offset, p.n_bytes] for i, p in graph.memory.placements.items()},
        }
    return json.dumps(document, indent=1)


def _plain(item: object) -> object:
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return item if isinstance(item, (bool, int, float, str)) or item is None else str(item)
