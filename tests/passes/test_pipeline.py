"""The list of passes: their order, and that the graph is verified after each."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from minfer.errors import GraphError, UnsupportedError
from minfer.graph import Graph
from minfer.passes import PIPELINE, PassContext, lower, run_passes
from minfer.passes.assign import assign
from small_graphs import BOUNDS, CONTEXT, dense_graph, moved, partial_backend, value

GRAPH = dense_graph()


def test_the_list() -> None:
    assert [name for name, _ in PIPELINE] == [
        "narrow",
        "assign",
        "fuse_gated_activation",
        "fuse_gated_matmul",
        "fuse_add_norm",
        "fuse_matmul_group",
        "prune",
        "split",
        "alias",
        "plan_memory",
    ]
    assert all(run.__name__ == name for name, run in PIPELINE)


def test_every_stage_is_given_out() -> None:
    stages = list(run_passes(GRAPH, CONTEXT))
    assert [name for name, _ in stages] == ["built", *(name for name, _ in PIPELINE)]
    assert stages[0][1] is GRAPH
    graphs = dict(stages)
    assert graphs["alias"].memory is None
    assert graphs["plan_memory"].memory is not None
    assert graphs["split"].aliases == {}
    assert lower(GRAPH, CONTEXT) == graphs["plan_memory"]


def test_the_graph_given_is_not_changed() -> None:
    before = dense_graph()
    lower(GRAPH, CONTEXT)
    assert before == GRAPH
    assert all(node.backend is None for node in GRAPH.nodes)


def test_lowering_again_gives_the_same_graph() -> None:
    assert lower(dense_graph(), CONTEXT) == lower(dense_graph(), CONTEXT)


def test_a_broken_graph_is_refused_before_any_pass() -> None:
    ran = []

    def spy(graph: Graph, context: PassContext) -> Graph:
        ran.append(graph)
        return graph

    with pytest.raises(GraphError, match="before it is made"):
        list(run_passes(moved(GRAPH, "0.middle", 0), CONTEXT, (("spy", spy),)))
    assert not ran


def test_a_pass_that_breaks_an_invariant_is_caught_right_after_it() -> None:
    def swap(graph: Graph, context: PassContext) -> Graph:
        return moved(graph, "0.kv_store", len(graph.nodes) - 1)

    def overwrite(graph: Graph, context: PassContext) -> Graph:
        aliases = {value(graph, "0.attn_norm").id: value(graph, "embedding").id}
        return replace(graph, aliases=MappingProxyType(aliases))

    for wrong, message in ((swap, "before this step's store"), (overwrite, "was overwritten")):
        seen: list[str] = []
        stages = run_passes(GRAPH, CONTEXT, (("assign", assign), ("wrong", wrong), *PIPELINE[1:]))
        with pytest.raises(GraphError, match=message):
            seen.extend(name for name, _ in stages)
        assert seen == ["built", "assign"]


def test_an_op_without_a_backend_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="Embedding"):
        lower(GRAPH, PassContext((partial_backend("bare"),), BOUNDS))
