"""narrow: rows that nobody wants are not computed, and those that are keep their bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.graph import INPUT_SPECS, Graph, GraphBuilder, Node, Symbol, TensorSpec, Value, ValueKind, verify
from minfer.graph.ops import ActivationKind, Op, Reshape, Rope, RopeStyle, SelectRows
from minfer.passes.assign import assign
from minfer.passes.narrow import narrow
from minfer.quants import GGMLType
from random_graphs import random_graphs
from small_graphs import CONTEXT, dense_graph, ids, node, plan_without_reuse, run_planned, value
from tiny_runtime import same_bits


def narrowed(graph: Graph) -> Graph:
    result = narrow(graph, CONTEXT)
    verify(result)
    return result


def selections(graph: Graph) -> list[Node]:
    return [each for each in graph.nodes if isinstance(each.op, SelectRows)]


def by_rows(graph: Graph, symbol: Symbol) -> set[str]:
    return {v.name for v in graph.of_kind(ValueKind.COMPUTED) if v.spec.shape[0] is symbol}


def test_the_selection_moves_up_to_attention_and_to_the_residual_stream() -> None:
    result = narrowed(dense_graph())
    assert [each.name for each in selections(result)] == ["1.heads.rows", "0.hidden.rows"]
    assert [each.inputs[0] for each in selections(result)] == list(ids(result, "1.heads", "0.hidden"))
    assert {"1.attention", "1.attn_output", "1.middle", "1.gate", "1.down", "1.hidden"} <= by_rows(
        result, Symbol.N_OUTPUTS
    )
    assert {"1.k_rope", "1.q_rope", "1.heads", "0.down", "0.hidden"} <= by_rows(result, Symbol.N_TOKENS)
    assert "rows" not in {v.name for v in result.values.values()}


def test_names_ids_and_layers_stay() -> None:
    before = dense_graph()
    after = narrowed(before)
    assert value(after, "1.down").id == value(before, "1.down").id
    assert node(after, "1.down").layer == node(after, "1.heads.rows").layer == 1
    assert after.outputs == before.outputs


def test_a_reshape_follows() -> None:
    op = node(narrowed(dense_graph()), "1.attention").op
    assert op == Reshape((Symbol.N_OUTPUTS, 64))


def test_what_is_read_elsewhere_keeps_all_its_rows() -> None:
    graph = dense_graph()
    watched = replace(graph, outputs=MappingProxyType({**graph.outputs, "middle": value(graph, "1.middle").id}))
    result = narrowed(watched)
    assert {"1.attn_output", "1.middle"} <= by_rows(result, Symbol.N_TOKENS)
    assert [each.name for each in selections(result)] == ["1.middle.rows"]


def test_a_selected_output_is_still_there() -> None:
    graph = dense_graph()
    shown = replace(graph, outputs=MappingProxyType({"logits": value(graph, "rows").id}))
    result = narrowed(shown)
    assert result.outputs == {"logits": value(result, "1.hidden").id}


@pytest.mark.parametrize("read_by_two", [True, False])
def test_nothing_moves_where_nothing_is_saved(read_by_two: bool) -> None:
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    if read_by_two:
        x = b.activation(x, ActivationKind.SILU, "y")
    rows = b.select_rows(x, b.input("output_rows"), "rows")
    outputs = {"logits": rows} | ({"all": x} if read_by_two else {})
    graph = b.build(outputs)
    assert narrowed(graph) == graph


def with_selections(graph: Graph, n: int) -> Graph:
    """The graph with rows selected of its last `n` values, as outputs instead of them."""
    values = dict(graph.values)
    rows = graph.next_id()
    values[rows] = Value(rows, "output_rows", ValueKind.INPUT, INPUT_SPECS["output_rows"])
    nodes, outputs = list(graph.nodes), {}
    for i, (name, source) in enumerate(list(graph.outputs.items())[:n]):
        (spec,) = SelectRows().output_specs([graph.value(source).spec, INPUT_SPECS["output_rows"]])
        made = Value(rows + 1 + i, f"{name} selected", ValueKind.COMPUTED, spec)
        values[made.id] = made
        nodes.append(Node(SelectRows(), (source, rows), (made.id,), made.name))
        outputs[name] = made.id
    return replace(graph, values=MappingProxyType(values), nodes=tuple(nodes), outputs=MappingProxyType(outputs))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(), st.integers(1, 3))
def test_the_rows_that_are_left_have_the_same_bits(graph: Graph, n: int) -> None:
    graph = with_selections(graph, n)
    verify(graph)
    result = narrowed(graph)
    before, after = (run_planned(plan_without_reuse(assign(g, CONTEXT)), poison=True) for g in (graph, result))
    assert before.keys() == after.keys()
    assert all(same_bits(before[name], after[name]) for name in before)


@dataclass(frozen=True)
class Flip(Op):
    """The rows in reverse: not row by row."""

    def output_specs(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(inputs)


@dataclass(frozen=True)
class Halve(Op):
    """An op that no pass has heard of."""

    row_wise = True

    def output_specs(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(inputs)


@pytest.mark.parametrize(("op", "selected"), [(Flip(), "y"), (Halve(), "x")])
def test_the_op_says_whether_it_works_row_by_row(op: Op, selected: str) -> None:
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    y = b.activation(b.apply(op, [x], "y"), ActivationKind.SILU, "z")
    result = narrowed(b.build({"logits": b.select_rows(y, b.input("output_rows"), "rows")}))
    assert [each.inputs[0] for each in selections(result)] == list(ids(result, selected))


def test_ops_that_read_inputs_of_the_step_stay_above() -> None:
    """A rotation is row by row, but positions are not selected."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    turned = b.rope(b.split_heads(x, 4, "heads"), b.input("positions"), Rope(RopeStyle.INTERLEAVED, (1.0,)), "turned")
    rows = b.select_rows(b.merge_heads(turned, "flat"), b.input("output_rows"), "rows")
    result = narrowed(b.build({"logits": rows}))
    assert Rope.row_wise
    assert [each.inputs[0] for each in selections(result)] == list(ids(result, "turned"))
