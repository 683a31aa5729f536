"""plan_memory: no two values that are needed at the same time overlap, and places are used again."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.errors import GraphError
from minfer.graph import Bounds, Graph, GraphBuilder, Placement, Symbol, ValueId
from minfer.graph.ops import ActivationKind
from minfer.passes import PassContext, lower
from minfer.passes.alias import alias
from minfer.passes.assign import assign
from minfer.passes.plan_memory import ALIGNMENT, plan_memory
from minfer.quants import GGMLType
from random_graphs import random_graphs
from small_graphs import BOUNDS, CONTEXT, dense_graph, ids, partial_backend, value, with_aliases


def lifetimes(graph: Graph) -> dict[ValueId, tuple[int, int]]:
    """For each storage, the first node that touches it and the last; written independently of the pass."""
    spans: dict[ValueId, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for value_id in (*node.inputs, *node.outputs):
            root = value_id
            while root in graph.aliases:
                root = graph.aliases[root]
            spans.setdefault(root, []).append(index)
    for value_id in graph.outputs.values():
        root = value_id
        while root in graph.aliases:
            root = graph.aliases[root]
        spans[root].append(len(graph.nodes))
    return {root: (min(at), max(at)) for root, at in spans.items()}


def places(graph: Graph) -> dict[ValueId, Placement]:
    assert graph.memory is not None
    return dict(graph.memory.placements)


def check_plan(graph: Graph, bounds: Bounds) -> None:
    """Pair by pair: whatever is needed at the same time, on one backend, lies apart; and all is aligned and inside."""
    assert graph.memory is not None
    placed, spans = places(graph), lifetimes(graph)
    home = {value_id: str(node.backend) for node in graph.nodes for value_id in node.outputs}
    assert placed.keys() == home.keys()
    roots = [value_id for value_id in home if value_id not in graph.aliases]
    for value_id in home:
        place = placed[value_id]
        assert place == placed[graph.storage(value_id)]
        assert place.offset % ALIGNMENT == 0
        assert place.offset >= 0
        assert place.n_bytes >= graph.value(value_id).spec.n_bytes(bounds)
        assert place.offset + place.n_bytes <= graph.memory.arena_bytes[home[value_id]]
    for i, one in enumerate(roots):
        for other in roots[:i]:
            at_once = spans[one][0] <= spans[other][1] and spans[other][0] <= spans[one][1]
            a, b = placed[one], placed[other]
            overlap = a.offset < b.offset + b.n_bytes and b.offset < a.offset + a.n_bytes
            assert not (home[one] == home[other] and at_once and overlap), (one, other)


def sum_of_storages(graph: Graph) -> int:
    placed = places(graph)
    return sum(placed[i].n_bytes for i in placed if i not in graph.aliases)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(random_graphs(), st.booleans(), st.integers(1, 300), st.integers(1, 300))
def test_any_graph(graph: Graph, with_alias: bool, n_tokens: int, n_outputs: int) -> None:
    bounds = {**BOUNDS, Symbol.N_TOKENS: n_tokens, Symbol.N_OUTPUTS: n_outputs}
    context = PassContext(CONTEXT.backends, bounds)
    graph = assign(graph, context)
    graph = plan_memory(alias(graph, context) if with_alias else graph, context)
    check_plan(graph, bounds)
    assert graph.memory is not None
    assert graph.memory.arena_bytes["reference"] <= sum_of_storages(graph)


def test_the_check_above_sees_an_overlap() -> None:
    graph = plan_memory(assign(dense_graph(), CONTEXT), CONTEXT)
    assert graph.memory is not None
    middle, embedding = ids(graph, "0.middle", "embedding")
    moved = {**graph.memory.placements, middle: graph.memory.placements[embedding]}
    broken = replace(graph, memory=replace(graph.memory, placements=MappingProxyType(moved)))
    with pytest.raises(AssertionError):
        check_plan(broken, BOUNDS)


def test_places_are_used_again() -> None:
    small, large = (lower(dense_graph(n), CONTEXT) for n in (2, 12))
    assert small.memory is not None
    assert large.memory is not None
    assert large.memory.arena_bytes == small.memory.arena_bytes
    assert small.memory.arena_bytes["reference"] < sum_of_storages(small) / 2
    assert large.memory.arena_bytes["reference"] < sum_of_storages(large) / 10


def test_sharing_storage_takes_less_memory() -> None:
    graph = assign(dense_graph(), CONTEXT)
    without, with_alias = plan_memory(graph, CONTEXT), plan_memory(alias(graph, CONTEXT), CONTEXT)
    assert without.memory is not None
    assert with_alias.memory is not None
    assert with_alias.memory.arena_bytes["reference"] < without.memory.arena_bytes["reference"]


def test_the_arena_is_no_larger_than_what_lives_at_once() -> None:
    """A chain needs two places; the third value goes where the first was."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    for i in range(5):
        x = b.activation(x, ActivationKind.SILU, f"a{i}")
    graph = plan_memory(assign(b.build({"o": x}), CONTEXT), CONTEXT)
    row = 8 * 64 * 4
    assert graph.memory is not None
    assert graph.memory.arena_bytes == {"reference": 2 * row}
    assert [places(graph)[value(graph, name).id].offset for name in ("x", "a0", "a1", "a2")] == [0, row, 0, row]


def test_sizes_are_those_of_the_largest_step() -> None:
    graph = assign(dense_graph(1), CONTEXT)
    sizes = []
    for n_tokens in (8, 16):
        bounds = {**BOUNDS, Symbol.N_TOKENS: n_tokens, Symbol.N_OUTPUTS: 1}
        planned = plan_memory(graph, PassContext(CONTEXT.backends, bounds))
        sizes.append(places(planned)[value(planned, "0.gated").id].n_bytes)
        assert places(planned)[value(planned, "output").id].n_bytes == 128  # 20 floats, up to a whole cache line
    assert sizes == [8 * 96 * 4, 16 * 96 * 4]


def test_regions_are_not_in_the_arena() -> None:
    graph = lower(dense_graph(), CONTEXT)
    assert not places(graph).keys() & set(ids(graph, "0.k_cache", "1.v_cache", "table", "tokens"))


def test_each_backend_has_its_own_arena() -> None:
    graph = assign(dense_graph(1), CONTEXT)
    context = PassContext((*CONTEXT.backends, partial_backend("other"), partial_backend("idle")), BOUNDS)
    nodes = [replace(n, backend="other") if n.name in ("output_norm", "output") else n for n in graph.nodes]
    graph = plan_memory(graph.with_nodes(nodes), context)
    assert graph.memory is not None
    arenas = graph.memory.arena_bytes
    assert arenas["idle"] == 0
    assert 0 < arenas["other"] < arenas["reference"]
    assert places(graph)[value(graph, "output_norm").id].offset == 0


def test_a_node_without_a_backend_is_refused() -> None:
    with pytest.raises(GraphError, match="embedding has no backend"):
        plan_memory(dense_graph(), CONTEXT)


def test_a_value_larger_than_the_storage_it_shares_is_refused() -> None:
    graph = with_aliases(assign(dense_graph(1), CONTEXT), **{"0.gate": "0.v"})
    with pytest.raises(GraphError, match=r"0\.gate is larger than the storage it shares"):
        plan_memory(graph, CONTEXT)
