"""split: copies between backends, and that two backends give the same bits as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from minfer.backends import Backend
from minfer.engine.plan import ExecutionPlan
from minfer.errors import GraphError
from minfer.graph import Graph, verify
from minfer.graph import ops as vocabulary
from minfer.graph.ops import OPS, Attention, Copy, KVStore, MatMul, Op
from minfer.passes import PassContext, lower, run_passes, segments
from minfer.passes.assign import assign
from minfer.passes.split import split
from minfer.trace import NodeEvent
from random_graphs import random_graphs
from small_graphs import BOUNDS, CONTEXT, RandomWeights, dense_graph, node, partial_backend, step_inputs, value
from tiny_models import TINY_SPECS, write_tiny
from tiny_runtime import chunked_logits, same_bits, tiny_runtime, whole_logits

EVERYTHING = tuple(op for op in OPS if op is not Copy)
GRAPH = dense_graph()


@dataclass
class Recorder:
    """Remembers which backend ran which node."""

    ran: list[tuple[str, str, str]] = field(default_factory=list)

    def begin_step(self, n_tokens: int, first_position: int) -> None:
        self.ran.clear()

    def node_ran(self, event: NodeEvent) -> None:
        self.ran.append((event.backend, event.op, event.node))

    def close(self) -> None:
        """Nothing is held open."""


def two(*first_ops: type[Op]) -> tuple[Backend, Backend]:
    """A backend that has only some ops, and is preferred, and one that has all."""
    return partial_backend("first", *first_ops), partial_backend("second", *EVERYTHING)


def run_on(graph: Graph, backends: Sequence[Backend]) -> NDArray[np.float32]:
    lowered = lower(graph, PassContext(tuple(backends), BOUNDS))
    plan = ExecutionPlan(lowered, backends, RandomWeights(lowered), BOUNDS, poison=True)
    try:
        return plan.step(step_inputs())
    finally:
        plan.close()


def split_graph(*first_ops: type[Op]) -> Graph:
    context = PassContext(two(*first_ops), BOUNDS)
    graph = split(assign(GRAPH, context), context)
    verify(graph)
    return graph


def test_one_backend_needs_no_copies() -> None:
    graph = assign(GRAPH, CONTEXT)
    assert split(graph, CONTEXT) == graph
    (segment,) = segments(graph)
    assert (segment.backend, segment.nodes, segment.is_copy) == ("reference", range(len(graph.nodes)), False)


def test_a_value_is_copied_once_for_each_backend_that_reads_it() -> None:
    """Query, key and value projections on the first backend read one norm of the second: one copy."""
    graph = split_graph(MatMul)
    copies = [each for each in graph.nodes if isinstance(each.op, Copy)]
    names = Counter(graph.value(each.inputs[0]).name for each in copies)
    assert names["0.attn_norm"] == names["0.ffn_norm"] == 1
    assert set(names.values()) == {1}
    for each in copies:
        (source,), (target,) = each.inputs, each.outputs
        assert graph.value(target).name == f"{graph.value(source).name}@{each.backend}"
        assert graph.value(target).spec == graph.value(source).spec
    copied = value(graph, "0.attn_norm@first").id
    assert [node(graph, f"0.{name}").inputs[0] for name in "qkv"] == [copied] * 3


def test_only_computed_values_are_copied() -> None:
    graph = split_graph(MatMul, vocabulary.Rope, vocabulary.SelectRows)
    computed = {i for each in graph.nodes for i in each.outputs}
    assert all(each.inputs[0] in computed for each in graph.nodes if isinstance(each.op, Copy))
    positions = value(graph, "positions").id
    assert node(graph, "0.q_rope").inputs[1] == positions
    assert node(graph, "0.q_rope").backend == "first"


def test_copies_stand_right_before_their_first_reader_and_in_its_layer() -> None:
    graph = split_graph(Attention, KVStore)
    for before, after in zip(graph.nodes, graph.nodes[1:], strict=False):
        if isinstance(before.op, Copy) and not isinstance(after.op, Copy):
            assert before.outputs[0] in after.inputs
            assert (before.layer, before.backend) == (after.layer, after.backend)


def test_segments_cover_the_nodes_in_order() -> None:
    graph = split_graph(Attention, KVStore)
    found = segments(graph)
    assert [i for segment in found for i in segment.nodes] == list(range(len(graph.nodes)))
    for segment in found:
        nodes = [graph.nodes[i] for i in segment.nodes]
        assert {each.backend for each in nodes} == {segment.backend}
        assert [isinstance(each.op, Copy) for each in nodes] == [segment.is_copy] * len(nodes)
        assert not segment.is_copy or len(nodes) == 1
    runs = [segment for segment in found if not segment.is_copy]
    # In each layer the store, the copy of the query, and the attention come between two runs of the other backend.
    layer = ["first", "first", "second"]
    assert [segment.backend for segment in runs] == ["second", *layer, *layer]


def test_segments_want_backends() -> None:
    with pytest.raises(GraphError, match="embedding has no backend"):
        segments(GRAPH)


def test_each_backend_has_its_program_and_its_regions() -> None:
    backends = two(Attention, KVStore)
    lowered = lower(GRAPH, PassContext(backends, BOUNDS))
    assert lowered.memory is not None
    assert min(lowered.memory.arena_bytes.values()) > 0
    plan = ExecutionPlan(lowered, backends, RandomWeights(lowered), BOUNDS, poison=True)
    recorder = Recorder()
    logits = plan.step(step_inputs(), [recorder])
    assert np.isfinite(logits).all()
    for backend, op, _ in recorder.ran:
        assert backend == ("first" if op in ("Attention", "KVStore") else "second")
    assert {op for backend, op, _ in recorder.ran if backend == "first"} == {"Attention", "KVStore"}
    keys = plan.region("1.k_cache").view(np.float32)
    assert np.flatnonzero(keys.any(axis=1)).tolist() == [64, 65, 66, 67, 68]
    plan.close()


SPLITS: list[tuple[type[Op], ...]] = [
    (Attention, KVStore),
    (MatMul,),
    (vocabulary.MatMulGroup, vocabulary.GatedMatMul, MatMul),
    (vocabulary.RMSNorm, vocabulary.AddRMSNorm, vocabulary.Embedding),
    (vocabulary.Rope, vocabulary.SelectRows, vocabulary.Multiply, vocabulary.Add),
    tuple(op for op in EVERYTHING if op is not vocabulary.Reshape),
]


@pytest.mark.parametrize("first_ops", SPLITS, ids=lambda ops: "-".join(op.__name__ for op in ops[:2]))
def test_two_backends_give_the_same_bits_as_one(first_ops: tuple[type[Op], ...]) -> None:
    alone = run_on(GRAPH, CONTEXT.backends)
    assert same_bits(run_on(GRAPH, two(*first_ops)), alone)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(), st.sets(st.sampled_from(EVERYTHING)), st.sets(st.sampled_from(EVERYTHING)))
def test_any_graph_on_three_backends(graph: Graph, first_ops: set[type[Op]], second_ops: set[type[Op]]) -> None:
    backends = (
        partial_backend("first", *first_ops),
        partial_backend("second", *second_ops),
        partial_backend("third", *EVERYTHING),
    )
    stages = dict(run_passes(graph, PassContext(backends, BOUNDS)))
    assert {n.backend for n in stages["split"].nodes} <= {"first", "second", "third"}
    assert same_bits(run_on(graph, backends), run_on(graph, CONTEXT.backends))


@pytest.mark.parametrize("first_ops", SPLITS[:2], ids=["attention", "matmul"])
def test_a_model_over_several_steps(first_ops: tuple[type[Op], ...], tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model.gguf", TINY_SPECS["qwen3"])
    tokens = [(7 * i + 3) % 300 for i in range(20)]
    with tiny_runtime(path) as runtime:
        alone = whole_logits(runtime, tokens)
    recorder = Recorder()
    with tiny_runtime(path, backends=two(*first_ops), observers=[recorder]) as runtime:
        assert same_bits(whole_logits(runtime, tokens), alone)
        assert {backend for backend, _, _ in recorder.ran} == {"first", "second"}
        for chunk in (1, 7):
            assert same_bits(chunked_logits(runtime, tokens, chunk), alone)
