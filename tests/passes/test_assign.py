"""assign: the first backend in order of preference, and one backend for all that touch a KV region."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from minfer.backends import Backend
from minfer.errors import GraphError, UnsupportedError
from minfer.graph import Graph, GraphBuilder, TensorSpec, verify
from minfer.graph.ops import OPS, Attention, Copy, KVStore, MatMul, Op, RMSNorm
from minfer.passes import PassContext
from minfer.passes.assign import assign
from minfer.quants import GGMLType
from small_graphs import BOUNDS, CONTEXT, PartialBackend, dense_graph, node, partial_backend

GRAPH = dense_graph()
EVERYTHING = tuple(op for op in OPS if op is not Copy)


def assigned(*backends: Backend, graph: Graph = GRAPH) -> Graph:
    result = assign(graph, PassContext(backends, BOUNDS))
    verify(result)
    return result


def without(name: str, *missing: type) -> Backend:
    return partial_backend(name, *(op for op in EVERYTHING if op not in missing))


class WithoutFloat16(PartialBackend):
    def refusal(self, op: Op, inputs: Sequence[TensorSpec]) -> str | None:
        return "no float16" if any(spec.ggml_type is GGMLType.F16 for spec in inputs) else super().refusal(op, inputs)


def test_every_node_gets_the_only_backend() -> None:
    assert {each.backend for each in assign(GRAPH, CONTEXT).nodes} == {"reference"}


def test_the_first_backend_that_can_is_taken() -> None:
    first, second = without("first", MatMul), without("second")
    for each in assigned(first, second).nodes:
        assert each.backend == ("second" if isinstance(each.op, MatMul) else "first")
    assert {each.backend for each in assigned(second, first).nodes} == {"second"}


def test_nothing_else_about_the_graph_changes() -> None:
    result = assigned(without("first", MatMul), without("second"))
    assert result.values == GRAPH.values
    assert [(n.op, n.inputs, n.outputs, n.name, n.layer) for n in result.nodes] == [
        (n.op, n.inputs, n.outputs, n.name, n.layer) for n in GRAPH.nodes
    ]


@pytest.mark.parametrize("missing", [KVStore, Attention])
def test_all_that_touch_a_region_go_together(missing: type) -> None:
    """The first backend could take the store, or the attention; it gets neither."""
    for each in assigned(without("first", missing), without("second")).nodes:
        assert each.backend == ("second" if isinstance(each.op, (KVStore, Attention)) else "first")


def test_regions_of_different_layers_are_decided_apart() -> None:
    """The first backend has no float16 regions, which only the second layer has."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 32), GGMLType.F32), "x")
    heads = b.split_heads(x, 2, "split")
    for layer, ggml_type in enumerate((GGMLType.F32, GGMLType.F16)):
        k, v = (b.kv_region(f"{layer}.{name}", 2, 16, ggml_type) for name in "kv")
        b.kv_store(heads, heads, b.input("cells"), k, v, f"{layer}.store")
        heads = b.attention(heads, k, v, scale=1.0, window=None, name=f"{layer}.heads")
    first = WithoutFloat16("first", frozenset(EVERYTHING))
    result = assigned(first, without("second"), graph=b.build({"logits": heads}))
    assert [node(result, f"0.{name}").backend for name in ("store", "heads")] == ["first", "first"]
    assert [node(result, f"1.{name}").backend for name in ("store", "heads")] == ["second", "second"]


def test_an_op_that_nobody_has_is_refused_with_every_reason() -> None:
    first, second = without("first", RMSNorm), without("second", RMSNorm, MatMul)
    with pytest.raises(UnsupportedError, match="not supported") as caught:
        assigned(first, second)
    assert caught.value.what == "RMSNorm (0.attn_norm)"
    for part in ("first, for RMSNorm (0.attn_norm): first has no RMSNorm", "second has no RMSNorm"):
        assert part in str(caught.value)


def test_a_group_that_nobody_has_whole_names_the_node_refused() -> None:
    first, second = without("first", KVStore), without("second", Attention)
    with pytest.raises(UnsupportedError) as caught:
        assigned(first, second)
    assert caught.value.what == "KVStore (0.kv_store) with Attention (0.heads)"
    message = str(caught.value)
    assert "first, for KVStore (0.kv_store): first has no KVStore" in message
    assert "second, for Attention (0.heads): second has no Attention" in message


def test_a_type_that_nobody_reads_is_named() -> None:
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 32), GGMLType.F32), "x")
    y = b.matmul(x, b.weight("w", (8, 32), GGMLType.I32), None, "y")
    with pytest.raises(UnsupportedError, match=re.escape("MatMul (y)") + ".*a matrix of weights can't be I32"):
        assign(b.build({"logits": y}), CONTEXT)


def test_a_backend_that_is_not_there() -> None:
    context = PassContext((without("first"),), BOUNDS)
    with pytest.raises(GraphError, match="embedding is assigned to reference, which is not among the backends"):
        context.backend_of(assign(GRAPH, CONTEXT).nodes[0])
