"""A graph as text, DOT and JSON: every node and value is there, before and after the passes."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from minfer.graph import Graph, GraphBuilder, ValueKind, to_dot, to_json, to_text
from minfer.passes import lower
from minfer.quants import GGMLType
from small_graphs import CONTEXT, WIDTH, dense_graph, value

BUILT = dense_graph()
LOWERED = lower(BUILT, CONTEXT)
GRAPHS = pytest.mark.parametrize("graph", [BUILT, LOWERED], ids=["built", "lowered"])


@GRAPHS
def test_text_has_a_line_for_every_node(graph: Graph) -> None:
    lines = to_text(graph).splitlines()
    for line, node in zip(lines, graph.nodes, strict=False):
        made, _, rest = line.partition(" = ")
        names = [graph.value(i).name for i in node.outputs]
        assert all(f"{name}: " in made for name in names) if names else made == "-"
        assert rest.startswith(node.op.kind + "(")
        inputs = ", ".join(graph.value(i).name for i in node.inputs)
        assert f"({inputs})" in rest
    assert "output logits = output" in lines
    n_arenas = 0 if graph.memory is None else len(graph.memory.arena_bytes)
    assert len(lines) == len(graph.nodes) + len(graph.outputs) + n_arenas


def test_text_shows_what_passes_have_decided() -> None:
    text = to_text(LOWERED)
    assert LOWERED.memory is not None
    place = LOWERED.memory.placements[value(LOWERED, "0.q").id]
    (line,) = (line for line in text.splitlines() if line.startswith("0.q: "))
    assert f"@reference [{place.offset}+{place.n_bytes}]" in line
    root = LOWERED.value(LOWERED.storage(value(LOWERED, "0.q_heads").id)).name
    assert re.search(rf"^0\.q_heads: .* in {re.escape(root)} \[", text, re.MULTILINE)
    assert f"arena of reference: {LOWERED.memory.arena_bytes['reference']} bytes" in text
    assert "@" not in to_text(BUILT)


@GRAPHS
def test_dot_is_balanced_and_has_every_node_edge_and_value(graph: Graph) -> None:
    dot = to_dot(graph)
    assert dot.startswith("digraph ")
    assert dot.count("{") == dot.count("}")
    assert dot.count("[") == dot.count("]")
    assert dot.count('"') % 2 == 0
    boxes = re.findall(r'^ +n(\d+) \[shape=box, label="([^"\\]+)\\n([^"\\]+)', dot, re.MULTILINE)
    assert [(int(i), kind, name) for i, kind, name in sorted(boxes, key=lambda box: int(box[0]))] == [
        (i, node.op.kind, node.name) for i, node in enumerate(graph.nodes)
    ]
    given = [v for v in graph.values.values() if v.kind is not ValueKind.COMPUTED]
    assert Counter(re.findall(r"^ +v(\d+) \[shape=(\w+)", dot, re.MULTILINE)) == Counter(
        (str(v.id), "cylinder" if v.kind is ValueKind.STATE else "ellipse") for v in given
    )
    edges = re.findall(r"([nv]\d+) -> n(\d+)", dot)
    assert len(edges) == sum(len(node.inputs) for node in graph.nodes)
    declared = {f"n{i}" for i, _, _ in boxes} | {f"v{v.id}" for v in given}
    assert {source for source, _ in edges} <= declared
    assert re.search(r'n(\d+) -> "out_logits"', dot)[1] == str(len(graph.nodes) - 1)  # type: ignore[index]


def test_dot_has_a_cluster_for_each_layer() -> None:
    dot = to_dot(BUILT)
    for layer in range(2):
        (cluster,) = re.findall(rf"subgraph cluster_{layer} {{(.*?)\n  }}", dot, re.DOTALL)
        assert len(re.findall("shape=box", cluster)) == sum(node.layer == layer for node in BUILT.nodes)


def test_dot_of_an_output_that_no_node_makes() -> None:
    b = GraphBuilder()
    table = b.weight("table", (20, WIDTH), GGMLType.F32)
    assert f'v{table.id} -> "out_table"' in to_dot(b.build({"table": table}))


@GRAPHS
def test_json_holds_the_whole_graph(graph: Graph) -> None:
    document = json.loads(to_json(graph))
    assert len(document["values"]) == len(graph.values)
    assert len(document["nodes"]) == len(graph.nodes)
    assert document["outputs"] == graph.outputs
    for item in document["values"]:
        value = graph.value(item["id"])
        assert (item["name"], item["kind"], item["type"]) == (value.name, value.kind.value, value.spec.ggml_type.name)
        assert item["shape"] == [d if isinstance(d, int) else str(d) for d in value.spec.shape]
        assert item["storage"] == graph.storage(value.id)
    for item, node in zip(document["nodes"], graph.nodes, strict=True):
        assert (item["name"], item["op"]) == (node.name, node.op.kind)
        assert (item["layer"], item["backend"]) == (node.layer, node.backend)
        assert (item["inputs"], item["outputs"]) == (list(node.inputs), list(node.outputs))
        assert item["attributes"].keys() == vars(node.op).keys()


def test_json_holds_attributes_and_the_memory_plan() -> None:
    document = json.loads(to_json(LOWERED))
    by_op = {item["op"]: item["attributes"] for item in document["nodes"]}
    assert by_op["Rope"] == {"style": "interleaved", "frequencies": [1.0, 0.1, 0.01], "magnitude": 1.0}
    assert by_op["Attention"] == {"scale": 0.25, "window": None, "softcap": None}
    assert by_op["MatMulGroup"] == {"has_bias": [True, False, False]}
    assert LOWERED.memory is not None
    assert document["memory"]["arena_bytes"] == LOWERED.memory.arena_bytes
    assert document["memory"]["placements"] == {
        str(i): [place.offset, place.n_bytes] for i, place in LOWERED.memory.placements.items()
    }
    assert "memory" not in json.loads(to_json(BUILT))
