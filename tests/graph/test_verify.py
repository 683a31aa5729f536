"""The verifier: names, order, specs, KV stores, backends. Each graph here breaks one invariant, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest

from minfer.errors import GraphError
from minfer.graph import Graph, GraphBuilder, Node, TensorSpec, Value, ValueKind, verify, verify_split
from minfer.graph.ops import ActivationKind, Add, Copy, KVStore, Op, Reshape
from minfer.quants import GGMLType
from small_graphs import dense_graph, ids, moved, node, value, with_node, with_value

GRAPH = dense_graph()
N_NODES = len(GRAPH.nodes)


def index_of(name: str) -> int:
    return GRAPH.nodes.index(node(GRAPH, name))


def refused(graph: Graph, *parts: str) -> None:
    """Refused with a message that holds the parts, in this order."""
    with pytest.raises(GraphError, match=".*".join(re.escape(part) for part in parts)):
        verify(graph)


def with_new_node(name: str, op: object, inputs: tuple[str, ...], spec: TensorSpec, after: str) -> Graph:
    made = Value(GRAPH.next_id(), name, ValueKind.COMPUTED, spec)
    new = Node(op, ids(GRAPH, *inputs), (made.id,), name)  # type: ignore[arg-type]
    nodes = list(GRAPH.nodes)
    nodes.insert(index_of(after) + 1, new)
    return GRAPH.with_nodes(nodes, [made])


def test_a_sound_graph_passes() -> None:
    verify(GRAPH)
    for n_layers in (1, 3):
        verify(dense_graph(n_layers))


# 1. Names, and who makes what when.


def test_two_values_with_one_name() -> None:
    refused(with_value(GRAPH, "0.middle", name="embedding"), "two values are named embedding")


def test_two_nodes_with_one_name() -> None:
    refused(with_node(GRAPH, "0.q", name="0.k"), "two nodes are named 0.k")


def test_a_value_that_does_not_exist_is_read() -> None:
    refused(with_node(GRAPH, "0.middle", inputs=(999, *ids(GRAPH, "embedding"))), "0.middle", "999", "does not exist")


def test_a_value_that_does_not_exist_is_made() -> None:
    refused(with_node(GRAPH, "output", outputs=(999,)), "output", "999", "does not exist")


@pytest.mark.parametrize("name", ["0.q_rope", "0.heads", "1.gate", "output"])
def test_a_value_is_read_before_it_is_made(name: str) -> None:
    first_input = next(i for i in node(GRAPH, name).inputs if GRAPH.value(i).kind is ValueKind.COMPUTED)
    refused(moved(GRAPH, name, 0), f"{name} reads {GRAPH.value(first_input).name} before it is made")


def test_a_node_reads_its_own_output() -> None:
    refused(with_node(GRAPH, "0.middle", inputs=ids(GRAPH, "embedding", "0.middle")), "0.middle reads 0.middle before")


def test_a_value_is_made_twice() -> None:
    refused(with_node(GRAPH, "0.v", outputs=ids(GRAPH, "0.k")), "0.k is made twice")


@pytest.mark.parametrize("name", ["tokens", "0.k.weight", "0.k_cache"])
def test_a_value_that_comes_from_outside_is_made(name: str) -> None:
    refused(with_node(GRAPH, "0.v", outputs=ids(GRAPH, name)), f"{name} is made twice, or is no computed value")


def test_nothing_makes_a_computed_value() -> None:
    orphan = Value(GRAPH.next_id(), "orphan", ValueKind.COMPUTED, TensorSpec((4,)))
    refused(replace(GRAPH, values=MappingProxyType({**GRAPH.values, orphan.id: orphan})), "nothing makes orphan")


def test_nothing_makes_an_output() -> None:
    refused(replace(GRAPH, outputs=MappingProxyType({"logits": 999})), "nothing makes the output logits")


# 2. Specs.


def test_an_output_is_declared_with_another_spec() -> None:
    refused(with_value(GRAPH, "0.q", spec=TensorSpec(value(GRAPH, "0.k").spec.shape)), "0.q", "n_tokens, 32")


def test_inputs_do_not_fit_the_op() -> None:
    refused(with_node(GRAPH, "0.middle", inputs=ids(GRAPH, "embedding", "0.q_rope")), "Add", "differ")


def test_a_node_has_too_few_outputs() -> None:
    refused(with_node(GRAPH, "0.v", outputs=()), "0.v", "MatMul has 1 outputs, not 0")


def test_a_node_has_too_many_outputs() -> None:
    refused(with_node(GRAPH, "0.kv_store", outputs=ids(GRAPH, "0.heads")), "0.kv_store", "KVStore has 0 outputs, not 1")


# 3. KV regions.


def test_keys_and_values_are_read_before_the_store() -> None:
    refused(moved(GRAPH, "1.kv_store", index_of("1.heads")), "1.heads reads 1.k_cache before this step's store")


def test_keys_and_values_are_read_without_a_store() -> None:
    nodes = [other for other in GRAPH.nodes if other.name != "0.kv_store"]
    refused(GRAPH.with_nodes(nodes), "0.heads reads 0.k_cache before this step's store")


def test_a_region_is_stored_into_twice() -> None:
    second = replace(node(GRAPH, "0.kv_store"), name="again")
    nodes = list(GRAPH.nodes)
    nodes.insert(index_of("0.kv_store") + 1, second)
    refused(GRAPH.with_nodes(nodes), "again stores a second time into 0.k_cache")


def test_keys_and_values_share_a_region() -> None:
    inputs = (*node(GRAPH, "0.kv_store").inputs[:4], *ids(GRAPH, "0.k_cache"))
    refused(with_node(GRAPH, "0.kv_store", inputs=inputs), "0.kv_store stores a second time into 0.k_cache")


@pytest.mark.parametrize("kind", [ValueKind.WEIGHT, ValueKind.INPUT])
def test_a_store_goes_to_what_is_no_state(kind: ValueKind) -> None:
    refused(with_value(GRAPH, "0.v_cache", kind=kind), "0.kv_store stores into 0.v_cache, which is no state")


def with_regions_read(keys: str, values: str) -> Graph:
    inputs = node(GRAPH, "1.heads").inputs
    return with_node(GRAPH, "1.heads", inputs=(inputs[0], *ids(GRAPH, keys, values), *inputs[3:]))


@pytest.mark.parametrize(
    ("keys", "values"), [("0.k_cache", "1.v_cache"), ("1.v_cache", "1.k_cache"), ("1.v_cache", "1.v_cache")]
)
def test_keys_and_values_that_were_not_stored_together(keys: str, values: str) -> None:
    refused(with_regions_read(keys, values), f"1.heads reads {keys} and {values}", "of one store")


def test_another_layers_keys_and_values_may_be_read() -> None:
    verify(with_regions_read("0.k_cache", "0.v_cache"))


def test_only_attention_reads_a_region() -> None:
    spec = value(GRAPH, "0.k_cache").spec
    graph = with_new_node("peek", Copy(), ("0.k_cache",), spec, after="0.heads")
    refused(graph, "peek reads 0.k_cache, which Copy must not")


# A toy recurrence: it reads what the last step left in its state, and writes what the next one finds.


@dataclass(frozen=True)
class Recurrence(Op):
    states_read = (1,)
    states_written = (1,)

    def output_specs(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return (inputs[0],)


def recurrent(*, again: bool) -> Graph:
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    state = b.kv_region("state", 4, 16, GGMLType.F32)
    y = b.apply(Recurrence(), [x, state], "y")
    return b.build({"logits": b.apply(Recurrence(), [y, state], "z") if again else y})


def test_an_op_may_read_and_write_one_state() -> None:
    verify(recurrent(again=False))
    refused(recurrent(again=True), "z stores a second time into state")


# Weights.


def test_a_weight_where_the_op_takes_none() -> None:
    b = GraphBuilder()
    x = b.weight("table", (20, 64), GGMLType.F32)
    refused(b.build({"logits": b.activation(x, ActivationKind.SILU, "y")}), "y reads table", "takes no weight there")


def test_no_weight_where_the_op_takes_one() -> None:
    wide = value(GRAPH, "1.down.weight").spec
    inputs = (node(GRAPH, "1.down").inputs[0], GRAPH.next_id())
    made = Value(GRAPH.next_id(), "computed", ValueKind.STATE, wide)
    graph = with_node(GRAPH.with_nodes(GRAPH.nodes, [made]), "1.down", inputs=inputs)
    refused(graph, "1.down reads computed")
    as_input = with_value(graph, "computed", kind=ValueKind.INPUT)
    refused(as_input, "1.down reads computed, and MatMul takes a weight there")


# 4. Backends.


def on(graph: Graph, choose: Callable[[Node], str | None]) -> Graph:
    return replace(graph, nodes=tuple(replace(each, backend=choose(each)) for each in graph.nodes))


def test_a_node_without_a_backend() -> None:
    refused(on(GRAPH, lambda each: None if each.name == "1.up" else "a"), "1.up has no backend")


def test_a_region_that_two_backends_use() -> None:
    graph = on(GRAPH, lambda each: "b" if each.name == "0.heads" else "a")
    refused(graph, "0.k_cache is used by a and by b", "0.heads")


def test_a_value_of_another_backend_is_read() -> None:
    graph = on(GRAPH, lambda each: "b" if each.name == "1.gate" else "a")
    verify(graph)  # `split` puts copies in between
    with pytest.raises(GraphError, match=r"1\.gate on b reads 1\.ffn_norm, which lives on a"):
        verify_split(graph)


def test_a_copy_reads_what_another_backend_made() -> None:
    graph = with_new_node("copied", Copy(), ("rows",), value(GRAPH, "rows").spec, after="rows")
    there = {"copied", "output_norm", "output"}
    without = on(graph, lambda each: "b" if each.name in there else "a")
    with pytest.raises(GraphError, match="output_norm on b reads rows, which lives on a"):
        verify_split(without)
    verify_split(with_node(without, "output_norm", inputs=ids(graph, "copied", "output_norm.weight")))


def test_one_backend_needs_no_copies() -> None:
    verify_split(on(GRAPH, lambda each: "a"))


def test_the_ops_used_here_are_those_meant() -> None:
    """The names above stand for these ops; a changed small graph must not make a test say something else."""
    assert isinstance(node(GRAPH, "0.middle").op, Add)
    assert isinstance(node(GRAPH, "0.kv_store").op, KVStore)
    assert isinstance(node(GRAPH, "0.q_heads").op, Reshape)
