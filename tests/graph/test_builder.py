"""The builder: names, layers, and what it refuses as nodes are added."""

from __future__ import annotations

import pytest

from minfer.errors import GraphError
from minfer.graph import INPUT_SPECS, GraphBuilder, Symbol, TensorSpec, Value, ValueKind, verify
from minfer.graph.ops import ActivationKind, Add, KVStore, MatMul
from minfer.quants import GGMLType
from small_graphs import dense_graph, node, value


def rows(builder: GraphBuilder) -> Value:
    table = builder.weight("table", (20, 64), GGMLType.Q8_0)
    return builder.embedding(builder.input("tokens"), table, "x")


def test_the_small_decoder() -> None:
    graph = dense_graph()
    verify(graph)
    assert node(graph, "1.q").layer == 1
    assert node(graph, "embedding").layer is node(graph, "output").layer is None
    assert node(graph, "0.q").op == MatMul(has_bias=True)
    assert node(graph, "0.k").op == MatMul(has_bias=False)
    assert [v.name for v in graph.of_kind(ValueKind.STATE)] == ["0.k_cache", "0.v_cache", "1.k_cache", "1.v_cache"]
    assert {v.name for v in graph.of_kind(ValueKind.INPUT)} == set(INPUT_SPECS)
    assert isinstance(node(graph, "0.kv_store").op, KVStore)
    assert node(graph, "0.kv_store").outputs == ()
    assert graph.outputs == {"logits": value(graph, "output").id}
    assert value(graph, "0.heads").spec == TensorSpec((Symbol.N_TOKENS, 4, 16))
    assert value(graph, "output").spec == TensorSpec((Symbol.N_OUTPUTS, 20))


def test_a_computed_value_is_named_after_its_node() -> None:
    graph = dense_graph()
    for each in graph.nodes:
        assert [graph.value(i).name for i in each.outputs] in ([each.name], [])


def test_asking_twice_for_an_input_or_a_weight_gives_one_value() -> None:
    b = GraphBuilder()
    assert b.input("tokens") is b.input("tokens")
    assert b.weight("w", (4, 32), GGMLType.Q8_0) is b.weight("w", (4, 32), GGMLType.Q8_0)


@pytest.mark.parametrize(("shape", "ggml_type"), [((4, 64), GGMLType.Q8_0), ((4, 32), GGMLType.F16)])
def test_a_weight_that_is_declared_in_two_ways(shape: tuple[int, ...], ggml_type: GGMLType) -> None:
    b = GraphBuilder()
    b.weight("w", (4, 32), GGMLType.Q8_0)
    with pytest.raises(GraphError, match=r"w is declared as weight q8_0\[4, 32\] and as weight"):
        b.weight("w", shape, ggml_type)


def test_a_weight_named_like_a_computed_value() -> None:
    b = GraphBuilder()
    b.reshape(b.weight("table", (20, 64), GGMLType.F32), (20, 4, 16), "x")
    b.input("tokens")
    with pytest.raises(GraphError, match=r"x is declared as computed .* and as weight"):
        b.weight("x", (20, 4, 16), GGMLType.F32)
    with pytest.raises(GraphError, match="tokens is declared as input"):
        b.weight("tokens", (4,), GGMLType.I32)


def test_an_input_that_steps_do_not_have() -> None:
    with pytest.raises(GraphError, match="no input mask; it has tokens, positions"):
        GraphBuilder().input("mask")


@pytest.mark.parametrize("name", ["x", "tokens", "table", "k_cache"])
def test_two_values_with_one_name(name: str) -> None:
    b = GraphBuilder()
    x = rows(b)
    b.kv_region("k_cache", 2, 16, GGMLType.F16)
    with pytest.raises(GraphError, match=f"two values are named {name}"):
        b.activation(x, ActivationKind.SILU, name)
    with pytest.raises(GraphError, match=f"two values are named {name}"):
        b.kv_region(name, 2, 16, GGMLType.F16)


def test_shapes_are_checked_as_nodes_are_added() -> None:
    b = GraphBuilder()
    x = rows(b)
    with pytest.raises(GraphError, match=r"MatMul: .* does not fit the weight"):
        b.matmul(x, b.weight("w", (4, 32), GGMLType.F32), None, "y")
    with pytest.raises(GraphError, match=r"Add: .* differ"):
        b.add(x, b.split_heads(x, 4, "heads"), "y")
    graph = b.build({})
    assert [each.name for each in graph.nodes] == ["x", "heads"]
    verify(graph)


@pytest.mark.parametrize("n_heads", [3, 5, 128])
def test_heads_that_do_not_divide_the_width(n_heads: int) -> None:
    b = GraphBuilder()
    with pytest.raises(GraphError, match=f"heads: 64 values can't be split into {n_heads} heads"):
        b.split_heads(rows(b), n_heads, "heads")


def test_heads_are_split_and_merged() -> None:
    b = GraphBuilder()
    heads = b.split_heads(rows(b), 4, "heads")
    assert heads.spec == TensorSpec((Symbol.N_TOKENS, 4, 16))
    assert b.merge_heads(heads, "merged").spec == TensorSpec((Symbol.N_TOKENS, 64))


def test_layers_nest_and_end_with_their_block() -> None:
    b = GraphBuilder()
    x = rows(b)
    with b.layer(3):
        y = b.add(x, x, "outer")
        with b.layer(4):
            b.add(y, y, "inner")
        b.add(y, y, "outer again")
    with pytest.raises(ZeroDivisionError), b.layer(5):
        _ = 1 / 0
    b.add(y, y, "after")
    layers = {each.name: each.layer for each in b.build({}).nodes}
    assert layers == {"x": None, "outer": 3, "inner": 4, "outer again": 3, "after": None}


def test_a_built_graph_does_not_change_with_the_builder() -> None:
    b = GraphBuilder()
    x = rows(b)
    graph = b.build({"logits": x})
    b.add(x, x, "later")
    assert [each.name for each in graph.nodes] == ["x"]
    assert "later" not in {v.name for v in graph.values.values()}
    with pytest.raises(TypeError):
        graph.outputs["more"] = 0  # type: ignore[index]


def test_who_makes_and_who_reads() -> None:
    b = GraphBuilder()
    x = rows(b)
    double = b.add(x, x, "double")
    last = b.multiply(double, x, "last")
    graph = b.build({"logits": last})
    assert graph.producers() == {x.id: 0, double.id: 1, last.id: 2}
    assert graph.consumers()[x.id] == [1, 2]
    assert last.id not in graph.consumers()
    assert graph.next_id() not in graph.values
    assert isinstance(graph.nodes[1].op, Add)
    dropped = graph.with_nodes(graph.nodes[:2])
    assert last.id not in dropped.values
    assert x.id in dropped.values
