"""alias: views and in-place work, only where nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings

from minfer.graph import Graph, GraphBuilder, Value, verify
from minfer.graph.ops import ActivationKind, Reshape
from minfer.passes import PassContext, run_passes
from minfer.passes.alias import alias
from minfer.passes.assign import assign
from minfer.passes.fuse import fuse_add_norm
from minfer.passes.plan_memory import plan_memory
from minfer.passes.split import split
from minfer.quants import GGMLType
from random_graphs import random_graphs
from small_graphs import BOUNDS, CONTEXT, dense_graph, partial_backend, plan_without_reuse, run_planned, value
from tiny_runtime import same_bits

SILU = ActivationKind.SILU


def storage(graph: Graph) -> dict[str, str]:
    """Where values live that live in another's storage, by name."""
    return {graph.value(i).name: graph.value(graph.storage(i)).name for i in graph.aliases}


def aliased(declare: Callable[[GraphBuilder, Value], Value | Sequence[Value]]) -> dict[str, str]:
    """What `alias` does to a graph over x f32[n_tokens, 64]; the values returned are outputs."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    results = declare(b, x)
    outputs = [results] if isinstance(results, Value) else results
    graph = alias(assign(b.build({f"o{i}": v for i, v in enumerate(outputs)}), CONTEXT), CONTEXT)
    verify(graph)
    return storage(graph)


def norm(b: GraphBuilder, x: Value, name: str) -> Value:
    return b.rms_norm(x, b.weight(f"{name}.weight", (64,), GGMLType.F32), 1e-6, name)


def test_a_decoder() -> None:
    places = storage(alias(assign(dense_graph(1), CONTEXT), CONTEXT))
    assert places == {
        "0.q_heads": "0.q",
        "0.q_rope": "0.q",
        "0.k_heads": "0.k",
        "0.k_rope": "0.k",
        "0.v_heads": "0.v",
        "0.attention": "0.heads",
        "0.middle": "embedding",
        "0.activated": "0.gate",
        "0.gated": "0.gate",
        "0.hidden": "embedding",
        "output_norm": "rows",
    }


def test_a_chain_works_in_place() -> None:
    def declare(b: GraphBuilder, x: Value) -> Value:
        return norm(b, b.activation(b.activation(x, SILU, "a"), SILU, "b"), "c")

    assert aliased(declare) == {"a": "x", "b": "x", "c": "x"}


def test_a_value_that_is_read_later_is_kept() -> None:
    def declare(b: GraphBuilder, x: Value) -> Value:
        a = b.activation(x, SILU, "a")
        return b.add(a, x, "sum")

    assert aliased(declare) == {"sum": "a"}


def test_a_value_that_is_an_output_is_kept() -> None:
    def declare(b: GraphBuilder, x: Value) -> Sequence[Value]:
        a = b.activation(x, SILU, "a")
        return a, b.activation(a, SILU, "b")

    assert aliased(declare) == {"a": "x"}


def test_the_second_operand_is_taken_where_the_first_is_needed() -> None:
    def declare(b: GraphBuilder, x: Value) -> Sequence[Value]:
        a = norm(b, x, "a")
        y = b.multiply(x, a, "y")
        return b.add(x, y, "z")

    assert aliased(declare) == {"y": "a", "z": "x"}


def test_an_operand_that_is_both_operands_is_kept() -> None:
    def declare(b: GraphBuilder, x: Value) -> Value:
        return b.multiply(x, x, "square")

    assert aliased(declare) == {}


def test_an_operand_whose_view_is_the_other_operand_is_kept() -> None:
    def declare(b: GraphBuilder, x: Value) -> Value:
        again = b.merge_heads(b.split_heads(x, 4, "heads"), "again")
        return b.multiply(x, again, "square")

    assert aliased(declare) == {"heads": "x", "again": "x"}


def test_a_value_whose_view_is_read_later_is_kept() -> None:
    def declare(b: GraphBuilder, x: Value) -> Value:
        heads = b.split_heads(x, 4, "heads")
        a = b.activation(x, SILU, "a")
        return b.add(a, b.merge_heads(heads, "merged"), "sum")

    assert aliased(declare) == {"heads": "x", "merged": "x", "sum": "a"}


def test_a_value_whose_view_is_an_output_is_kept() -> None:
    def declare(b: GraphBuilder, x: Value) -> Sequence[Value]:
        return b.split_heads(x, 4, "heads"), b.activation(x, SILU, "a")

    assert aliased(declare) == {"heads": "x"}


def test_ops_that_can_not_work_in_place_get_their_own_storage() -> None:
    def declare(b: GraphBuilder, x: Value) -> Value:
        y = b.matmul(x, b.weight("w", (64, 64), GGMLType.F32), None, "y")
        return b.select_rows(y, b.input("output_rows"), "rows")

    assert aliased(declare) == {}


def test_weights_are_never_written_over() -> None:
    b = GraphBuilder()
    table = b.weight("table", (20, 64), GGMLType.F32)
    heads = b.reshape(table, (20, 4, 16), "heads")
    graph = alias(assign(b.build({"o": b.activation(heads, SILU, "a")}), CONTEXT), CONTEXT)
    assert storage(graph) == {"a": "heads"}


def test_only_the_first_output_takes_over_storage() -> None:
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    y = b.matmul(x, b.weight("w", (64, 64), GGMLType.F32), None, "y")
    total = b.add(x, y, "sum")
    graph = b.build({"o": b.multiply(norm(b, total, "norm"), total, "end")})
    graph = alias(fuse_add_norm(assign(graph, CONTEXT), CONTEXT), CONTEXT)
    verify(graph)
    assert storage(graph) == {"sum": "x", "end": "norm"}


@pytest.mark.parametrize("here", [True, False])
def test_no_storage_is_shared_between_backends(here: bool) -> None:
    """An activation of another backend would work in place on its copy, and not on what was copied."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    graph = b.build({"o": b.activation(x, SILU, "a")})
    context = PassContext((*CONTEXT.backends, partial_backend("other")), BOUNDS)
    graph = assign(graph, context)
    nodes = [n if here or n.name == "x" else replace(n, backend="other") for n in graph.nodes]
    graph = alias(split(graph.with_nodes(nodes), context), context)
    verify(graph)
    assert storage(graph) == ({"a": "x"} if here else {"a": "x@other"})
    unsplit = alias(assign(b.build({"o": value(graph, "a")}), context).with_nodes(nodes), context)
    assert storage(unsplit) == ({"a": "x"} if here else {})


@settings(max_examples=120, deadline=None, derandomize=True)
@given(random_graphs())
def test_sharing_storage_changes_no_bits(graph: Graph) -> None:
    """Against every value in a place of its own; dead memory is poisoned, so that a read of it shows."""
    graph = assign(graph, CONTEXT)
    apart = run_planned(plan_without_reuse(graph), poison=False)
    shared = plan_memory(alias(graph, CONTEXT), CONTEXT)
    verify(shared, BOUNDS)
    together = run_planned(shared, poison=True)
    assert all(same_bits(apart[name], together[name]) for name in apart)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs())
def test_the_whole_pipeline_changes_no_bits(graph: Graph) -> None:
    apart = run_planned(plan_without_reuse(assign(graph, CONTEXT)), poison=False)
    *_, (name, lowered) = run_passes(graph, CONTEXT)
    assert name == "plan_memory"
    together = run_planned(lowered, poison=True)
    assert all(same_bits(apart[name], together[name]) for name in apart)


def test_unsafe_sharing_would_be_seen() -> None:
    """What the tests above look for: an input that is still needed, taken over against the rules, shows in the bits."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    graph = assign(b.build({"logits": b.add(b.activation(x, SILU, "a"), x, "sum")}), CONTEXT)
    apart = run_planned(plan_without_reuse(graph), poison=False)
    wrong = replace(graph, aliases=MappingProxyType({value(graph, "a").id: value(graph, "x").id}))
    together = run_planned(plan_memory(wrong, CONTEXT), poison=True)
    assert not same_bits(apart["logits"], together["logits"])


def test_reshapes_are_always_views_of_what_was_computed() -> None:
    graph = alias(assign(dense_graph(), CONTEXT), CONTEXT)
    for node in graph.nodes:
        if isinstance(node.op, Reshape):
            assert graph.storage(node.outputs[0]) == graph.storage(node.inputs[0])
