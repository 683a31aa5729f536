"""prune: what neither an output nor a KV store needs goes, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from hypothesis import given, settings

from minfer.graph import Graph, GraphBuilder, ValueKind, verify
from minfer.graph.ops import ActivationKind, KVStore
from minfer.passes.assign import assign
from minfer.passes.fuse import fuse_matmul_group
from minfer.passes.prune import prune
from minfer.quants import GGMLType
from random_graphs import random_graphs
from small_graphs import CONTEXT, dense_graph, node, plan_without_reuse, run_planned, value
from tiny_runtime import same_bits


def pruned(graph: Graph) -> Graph:
    result = prune(graph, CONTEXT)
    verify(result)
    return result


def names(graph: Graph, kind: ValueKind) -> set[str]:
    return {each.name for each in graph.of_kind(kind)}


def test_a_graph_without_dead_nodes_stays() -> None:
    graph = dense_graph()
    assert pruned(graph) == graph


def test_dead_nodes_go_with_what_only_they_need() -> None:
    b = GraphBuilder()
    table = b.weight("table", (20, 64), GGMLType.F32)
    x = b.embedding(b.input("tokens"), table, "x")
    heads = b.split_heads(x, 4, "heads")
    dead = b.matmul(x, b.weight("dead.weight", (8, 64), GGMLType.F32), None, "dead")
    b.activation(dead, ActivationKind.SILU, "deader")
    b.select_rows(x, b.input("output_rows"), "dead rows")
    used = b.rms_norm(x, b.weight("norm.weight", (64,), GGMLType.F32), 1e-6, "used")
    k, v = (b.kv_region(name, 4, 16, GGMLType.F32) for name in "kv")
    b.kv_store(heads, heads, b.input("cells"), k, v, "store")
    b.weight("unread.weight", (4,), GGMLType.F32)
    result = pruned(b.build({"logits": used}))
    assert [node.name for node in result.nodes] == ["x", "heads", "used", "store"]
    assert names(result, ValueKind.COMPUTED) == {"x", "heads", "used"}
    assert names(result, ValueKind.WEIGHT) == {"table", "norm.weight"}
    assert names(result, ValueKind.INPUT) == {"tokens", "cells"}
    assert names(result, ValueKind.STATE) == {"k", "v"}


def test_a_store_keeps_what_it_needs_although_nobody_reads_it() -> None:
    graph = dense_graph()
    early = replace(graph, outputs=MappingProxyType({"logits": value(graph, "embedding").id}))
    result = pruned(early)
    assert sum(isinstance(node.op, KVStore) for node in result.nodes) == 2
    kept = {node.name for node in result.nodes}
    assert {"1.kv_store", "1.k_rope", "0.hidden", "0.heads"} <= kept
    assert kept.isdisjoint({"1.heads", "1.q", "1.hidden", "output", "rows"})


def test_a_node_stays_whole_for_one_of_its_outputs() -> None:
    graph = fuse_matmul_group(assign(dense_graph(1), CONTEXT), CONTEXT)
    nodes = [*graph.nodes[:2], node(graph, "0.q+0.k+0.v")]  # without the store, which needs all of it
    outputs = MappingProxyType({"logits": value(graph, "0.k").id})
    result = pruned(replace(graph.with_nodes(nodes), outputs=outputs))
    assert [each.name for each in result.nodes] == ["embedding", "0.attn_norm", "0.q+0.k+0.v"]
    assert {"0.q", "0.k", "0.v"} <= names(result, ValueKind.COMPUTED)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(random_graphs())
def test_what_is_left_gives_the_same_bits(graph: Graph) -> None:
    graph = assign(graph, CONTEXT)
    result = pruned(graph)
    read = {i for node in result.nodes for i in node.inputs} | set(result.outputs.values())
    assert all(isinstance(node.op, KVStore) or read.intersection(node.outputs) for node in result.nodes)
    before = run_planned(plan_without_reuse(graph), poison=False)
    after = run_planned(plan_without_reuse(result), poison=False)
    assert before.keys() == after.keys()
    assert all(same_bits(before[name], after[name]) for name in before)
