"""The verifier: shared storage and the memory plan. Each graph here breaks one invariant, and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType

import pytest

from minfer.errors import GraphError
from minfer.graph import Graph, GraphBuilder, MemoryPlan, Node, Symbol, TensorSpec, Value, ValueKind, last_uses, verify
from minfer.graph.ops import ActivationKind, AddRMSNorm, Copy
from minfer.quants import GGMLType
from small_graphs import BOUNDS, ids, value, with_aliases, with_memory, with_node

ROW_BYTES = 8 * 64 * 4
"""Bytes of a value [n_tokens, 64] at the largest step."""


def chain() -> Graph:
    """x; a = silu(x); b = silu(a); c = b seen as heads; d = silu(c); e = d seen as rows; y = x + e; z = y w^T."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    a = b.activation(x, ActivationKind.SILU, "a")
    second = b.activation(a, ActivationKind.SILU, "b")
    c = b.split_heads(second, 4, "c")
    d = b.activation(c, ActivationKind.SILU, "d")
    e = b.merge_heads(d, "e")
    y = b.add(x, e, "y")
    z = b.matmul(y, b.weight("w", (64, 64), GGMLType.F32), None, "z")
    graph = b.build({"logits": z})
    return graph.with_nodes(replace(node, backend="reference") for node in graph.nodes)


GRAPH = chain()
PLAN = {
    "x": (0, ROW_BYTES),
    "a": (ROW_BYTES, ROW_BYTES),
    "b": (2 * ROW_BYTES, ROW_BYTES),
    "c": (3 * ROW_BYTES, ROW_BYTES),
}
PLAN |= {name: ((4 + i) * ROW_BYTES, ROW_BYTES) for i, name in enumerate("deyz")}


def refused(graph: Graph, *parts: str) -> None:
    with pytest.raises(GraphError, match=".*".join(re.escape(part) for part in parts)):
        verify(graph, BOUNDS)


def planned(graph: Graph = GRAPH, arena_bytes: int = 8 * ROW_BYTES, **changes: tuple[int, int]) -> Graph:
    return with_memory(graph, arena_bytes, **(PLAN | changes))


# 5. Shared storage.


def test_in_place_chains_and_views_pass() -> None:
    verify(with_aliases(GRAPH, b="a", c="b", d="c", e="d"))
    verify(with_aliases(GRAPH, b="a", c="a", d="a", e="a", y="a"))
    verify(with_aliases(GRAPH, y="x"))


def test_a_value_is_read_after_its_storage_was_overwritten() -> None:
    refused(with_aliases(GRAPH, a="x"), "y reads x after its storage was overwritten")
    refused(with_aliases(GRAPH, a="x", b="a"), "y reads x after its storage was overwritten")


def test_a_view_is_read_after_what_it_shows_was_overwritten() -> None:
    graph = with_aliases(GRAPH, c="b", d="c")
    verify(graph)
    refused(with_node(graph, "y", inputs=ids(graph, "x", "b")), "y reads b after its storage was overwritten")


def test_two_views_of_one_value_hold_the_same() -> None:
    graph = with_aliases(GRAPH, c="b")
    verify(with_node(graph, "y", inputs=ids(graph, "x", "b")))


def test_an_output_is_overwritten() -> None:
    graph = replace(with_aliases(GRAPH, b="a"), outputs=MappingProxyType({"logits": value(GRAPH, "a").id}))
    refused(graph, "the output logits is overwritten")


@pytest.mark.parametrize("name", ["table", "tokens"])
def test_storage_of_what_is_not_the_steps(name: str) -> None:
    refused(with_aliases(GRAPH, x=name), "x lives in storage that does not belong to the step")


def test_storage_that_does_not_exist() -> None:
    a = value(GRAPH, "a").id
    refused(replace(GRAPH, aliases=MappingProxyType({a: 999})), "999", "does not exist")
    refused(replace(GRAPH, aliases=MappingProxyType({999: a})), "999", "does not exist")


def test_a_value_in_the_memory_of_another_backend() -> None:
    copied = Value(GRAPH.next_id(), "copied", ValueKind.COMPUTED, value(GRAPH, "z").spec)
    copy = Node(Copy(), ids(GRAPH, "z"), (copied.id,), "copied", backend="other")
    graph = GRAPH.with_nodes([*GRAPH.nodes, copy], [copied])
    verify(graph)
    refused(with_aliases(graph, copied="a"), "copied lives in the memory of another backend")


def test_an_op_that_can_not_work_in_place() -> None:
    refused(with_aliases(GRAPH, z="y"), "z writes z over its input y, which MatMul can't")


def add_norm_graph() -> Graph:
    b = GraphBuilder()
    table = b.weight("table", (20, 64), GGMLType.F32)
    p, q = (b.embedding(b.input("tokens"), table, name) for name in "pq")
    weight = b.weight("w", (64,), GGMLType.F32)
    graph = b.build({})
    spec = TensorSpec((Symbol.N_TOKENS, 64))
    made = [Value(graph.next_id() + i, name, ValueKind.COMPUTED, spec) for i, name in enumerate(("sum", "norm"))]
    node = Node(AddRMSNorm(0.1), (p.id, q.id, weight.id), (made[0].id, made[1].id), "add_norm")
    return replace(graph.with_nodes([*graph.nodes, node], made), outputs=MappingProxyType({"logits": made[1].id}))


def test_two_outputs_of_a_node() -> None:
    graph = add_norm_graph()
    verify(with_aliases(graph, sum="p"))
    verify(with_aliases(graph, sum="q"))
    refused(with_aliases(graph, norm="sum"), "add_norm: two outputs share storage")
    refused(with_aliases(graph, norm="p"), "add_norm writes norm over its input p, which AddRMSNorm can't")


# 6. Memory.


def test_a_plan_without_overlap_passes() -> None:
    verify(planned(), BOUNDS)


def test_places_may_be_used_again_once_their_value_is_dead() -> None:
    verify(
        planned(b=(8 * ROW_BYTES, ROW_BYTES), d=(ROW_BYTES, ROW_BYTES), arena_bytes=9 * ROW_BYTES),
        BOUNDS,
    )
    verify(planned(z=PLAN["x"]), BOUNDS)


def test_a_plan_is_verified_with_bounds() -> None:
    with pytest.raises(GraphError, match="bounds"):
        verify(planned())


@pytest.mark.parametrize(
    ("name", "place", "other"),
    [
        ("a", (0, ROW_BYTES), "x"),  # the input of the node
        ("b", (ROW_BYTES - 64, ROW_BYTES), "x"),  # by one line; x is needed later
        ("y", PLAN["e"], "e"),
        ("z", (PLAN["y"][0] + ROW_BYTES // 2, ROW_BYTES), "y"),
    ],
)
def test_values_overlap_while_both_are_needed(name: str, place: tuple[int, int], other: str) -> None:
    refused(planned(**{name: place}), f"{name} and {other} overlap")


def test_an_output_is_needed_to_the_end() -> None:
    graph = replace(GRAPH, outputs=MappingProxyType({"logits": value(GRAPH, "a").id}))
    verify(planned(graph), BOUNDS)
    verify(planned(z=PLAN["a"]), BOUNDS)
    refused(planned(graph, z=PLAN["a"]), "z and a overlap")
    assert last_uses(graph)[value(graph, "a").id] == len(graph.nodes)
    assert last_uses(GRAPH)[value(GRAPH, "a").id] == 2


def test_a_value_that_nobody_reads_is_needed_while_it_is_made() -> None:
    graph = with_node(GRAPH, "b", inputs=ids(GRAPH, "x"))
    assert last_uses(graph)[value(graph, "a").id] == 1
    verify(planned(graph, b=PLAN["a"]), BOUNDS)
    refused(planned(graph, a=PLAN["x"]), "a and x overlap")


def test_shared_storage_is_one_place() -> None:
    graph = with_aliases(GRAPH, b="a", c="b")
    verify(planned(graph, b=PLAN["a"], c=PLAN["a"]), BOUNDS)
    refused(planned(graph, b=PLAN["a"]), "c and a share storage and have different places")


def test_storage_is_needed_as_long_as_any_value_in_it() -> None:
    """a's last reader is b, but c is a's storage seen as heads, and read by d."""
    graph = with_aliases(GRAPH, b="a", c="a")
    places = {"b": PLAN["a"], "c": PLAN["a"]}
    verify(planned(graph, **places), BOUNDS)
    refused(planned(graph, **places, d=PLAN["a"]), "d and a overlap")


def test_a_value_without_a_place() -> None:
    graph = planned()
    assert graph.memory is not None
    placements = {i: p for i, p in graph.memory.placements.items() if i != value(graph, "d").id}
    refused(replace(graph, memory=replace(graph.memory, placements=placements)), "d has no place in memory")


def test_a_place_that_is_too_small() -> None:
    refused(planned(d=(PLAN["d"][0], ROW_BYTES - 1)), f"d needs {ROW_BYTES} bytes and has {ROW_BYTES - 1}")


@pytest.mark.parametrize("offset", [-64, 7 * ROW_BYTES + 64, 100 * ROW_BYTES])
def test_a_place_outside_of_the_arena(offset: int) -> None:
    refused(planned(z=(offset, ROW_BYTES)), "z reaches outside the arena of reference")


def two_backends(**places: tuple[int, int]) -> Graph:
    """z is copied to another backend, whose arena is `ROW_BYTES` long."""
    copied = Value(GRAPH.next_id(), "copied", ValueKind.COMPUTED, value(GRAPH, "z").spec)
    copy = Node(Copy(), ids(GRAPH, "z"), (copied.id,), "copied", backend="other")
    graph = planned(GRAPH.with_nodes([*GRAPH.nodes, copy], [copied]), **places)
    assert graph.memory is not None
    arenas = MappingProxyType({**graph.memory.arena_bytes, "other": ROW_BYTES})
    return replace(graph, memory=replace(graph.memory, arena_bytes=arenas))


def test_arenas_of_different_backends_do_not_overlap() -> None:
    verify(two_backends(copied=(0, ROW_BYTES), z=(0, ROW_BYTES)), BOUNDS)
    refused(two_backends(copied=(64, ROW_BYTES)), "copied reaches outside the arena of other")


def test_a_backend_without_an_arena() -> None:
    graph = two_backends(copied=(0, ROW_BYTES))
    assert graph.memory is not None
    only = MemoryPlan(MappingProxyType({"reference": 8 * ROW_BYTES}), graph.memory.placements)
    refused(replace(graph, memory=only), "copied reaches outside the arena of other")


def test_a_planned_graph_has_its_copies() -> None:
    graph = two_backends(copied=(0, ROW_BYTES))
    graph = with_node(graph, "z", backend="other")
    refused(graph, "z on other reads y, which lives on reference")
