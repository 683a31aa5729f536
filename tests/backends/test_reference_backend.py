"""The reference backend: what it supports, and how a program uses its arena, weights and regions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from minfer.backends import CompileRequest
from minfer.backends.reference import ReferenceBackend
from minfer.backends.reference.kernels import KERNELS
from minfer.backends.reference.operands import WeightCache
from minfer.backends.reference.program import ReferenceProgram
from minfer.errors import GraphError
from minfer.graph import Graph, MemoryPlan, Symbol, TensorSpec
from minfer.graph.ops import OPS, ActivationKind, Attention, Copy, Embedding, GatedMatMul, KVStore, MatMul, RMSNorm
from minfer.passes import lower
from minfer.quants import GGMLType, dequantisable_types
from minfer.trace import NodeEvent
from small_graphs import BOUNDS, CONTEXT, RandomWeights, dense_graph, ids, step_inputs, value
from tiny_runtime import same_bits

BACKEND = ReferenceBackend()
GRAPH = lower(dense_graph(), CONTEXT)
N, CELLS = Symbol.N_TOKENS, Symbol.N_CELLS


def compiled(graph: Graph = GRAPH, backend: ReferenceBackend = BACKEND, **options: Any) -> ReferenceProgram:
    weights = options.pop("weights", RandomWeights(graph))
    segments = options.pop("segments", (range(len(graph.nodes)),))
    return backend.compile(CompileRequest(graph, segments, weights, BOUNDS, **options))


def logits(program: ReferenceProgram) -> NDArray[np.float32]:
    step = step_inputs()
    program.run(0, step, ())
    return program.read(GRAPH.outputs["logits"], step).copy()


# What it supports.


def test_every_op_but_the_copy_has_a_kernel() -> None:
    assert set(KERNELS) == set(OPS) - {Copy}
    assert BACKEND.refusal(Copy(), (TensorSpec((N, 4)),)) == "there is no kernel for Copy"


@pytest.mark.parametrize("ggml_type", GGMLType)
def test_weights_of_every_type_that_can_be_dequantised(ggml_type: GGMLType) -> None:
    weight = TensorSpec((16, 256), ggml_type)

    def reason(role: str) -> str | None:
        return None if ggml_type in dequantisable_types() else f"a {role} of weights can't be {ggml_type.name}"

    x, tokens = TensorSpec((N, 256)), TensorSpec((N,), GGMLType.I32)
    assert BACKEND.refusal(MatMul(), (x, weight)) == reason("matrix")
    assert BACKEND.refusal(MatMul(True), (x, TensorSpec((16, 256)), TensorSpec((256,), ggml_type))) == reason("vector")
    assert BACKEND.refusal(GatedMatMul(ActivationKind.SILU), (x, TensorSpec((16, 256)), weight)) == reason("matrix")
    assert BACKEND.refusal(Embedding(), (tokens, weight)) == reason("matrix")
    assert BACKEND.refusal(RMSNorm(0.1), (x, TensorSpec((256,), ggml_type))) == reason("vector")


@pytest.mark.parametrize("ggml_type", GGMLType)
def test_regions_are_f32_f16_or_q8_0(ggml_type: GGMLType) -> None:
    rows, indices, spans = TensorSpec((N, 2, 256)), TensorSpec((N,), GGMLType.I32), TensorSpec((N, 2), GGMLType.I32)
    region, other = TensorSpec((CELLS, 2, 256), ggml_type), TensorSpec((CELLS, 2, 256))
    known = (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)
    reason = None if ggml_type in known else f"a KV region can't be {ggml_type.name}"
    pages = TensorSpec((Symbol.N_PAGES,), GGMLType.I32)
    for pair in ((region, other), (other, region)):
        assert BACKEND.refusal(KVStore(), (rows, rows, indices, *pair)) == reason
        assert BACKEND.refusal(Attention(1.0), (rows, *pair, pages, spans)) == reason


# Programs.


def test_a_graph_without_a_memory_plan_is_refused() -> None:
    with pytest.raises(GraphError, match="plan_memory"):
        compiled(dense_graph())


def test_a_step_gives_the_same_bits_again_and_for_another_number_of_tokens() -> None:
    program = compiled(poison=True)
    first = logits(program)
    assert first.shape == (3, 20)
    assert np.isfinite(first).all()
    step = step_inputs([3, 1], [0])
    program.run(0, step, ())
    assert same_bits(program.read(GRAPH.outputs["logits"], step), first[:1])
    assert same_bits(logits(program), first)


def test_the_arena_is_as_large_as_planned_and_values_lie_where_planned() -> None:
    assert GRAPH.memory is not None
    program = compiled()
    step = step_inputs()
    result = logits(program)
    first = min(GRAPH.memory.placements, key=lambda i: GRAPH.memory.placements[i].offset)
    assert GRAPH.memory.placements[first].offset == 0
    start = program.read(first, step).ctypes.data
    place = GRAPH.memory.placements[GRAPH.outputs["logits"]]
    view = program.read(GRAPH.outputs["logits"], step)
    assert view.ctypes.data - start == place.offset
    assert place.offset + result.nbytes <= GRAPH.memory.arena_bytes["reference"]
    assert_array_equal(view, result)


def test_poison_fills_what_is_dead_and_leaves_what_lives() -> None:
    """Before and after a step all but the outputs is NaN; without poison the numbers of the step are still there."""
    for poison in (True, False):
        program = compiled(poison=poison)
        untouched = program.read(GRAPH.outputs["logits"], step_inputs())
        assert np.isnan(untouched).all() == poison
        logits(program)
        hidden = program.read(value(GRAPH, "1.hidden").id, step_inputs())
        shared = GRAPH.storage(GRAPH.outputs["logits"])
        assert GRAPH.storage(value(GRAPH, "1.hidden").id) != shared
        assert np.isnan(hidden).all() == poison


def test_poison_shows_a_read_of_memory_that_holds_nothing() -> None:
    """A plan that gives a live value's place to another one: with poison its reader meets NaN, or other bits."""
    assert GRAPH.memory is not None
    hidden, gated = value(GRAPH, "0.middle").id, value(GRAPH, "0.gated").id
    placements = {**GRAPH.memory.placements}
    root = GRAPH.storage(hidden)
    for value_id in placements:
        if GRAPH.storage(value_id) == root:
            placements[value_id] = replace(placements[value_id], offset=placements[gated].offset)
    broken = replace(GRAPH, memory=MemoryPlan(GRAPH.memory.arena_bytes, MappingProxyType(placements)))
    assert np.isnan(logits(compiled(broken, poison=True))).all()


def test_written_values_are_read_back() -> None:
    program = compiled()
    step = step_inputs()
    target = value(GRAPH, "0.q_heads").id
    rows = np.random.default_rng(0).normal(size=(5, 4, 16)).astype(np.float32)
    program.write(target, rows)
    assert same_bits(program.read(target, step), rows)
    program.write(target, rows[:, ::-1])
    assert same_bits(program.read(target, step), rows[:, ::-1].copy())


def test_segments_run_apart() -> None:
    cut = 5
    program = compiled(segments=(range(cut), range(cut, len(GRAPH.nodes))))
    step = step_inputs()
    program.run(0, step, ())
    program.run(1, step, ())
    assert same_bits(program.read(GRAPH.outputs["logits"], step), logits(compiled()))


def test_regions_are_kept_between_steps_and_can_be_written() -> None:
    program = compiled()
    keys = value(GRAPH, "0.k_cache").id
    assert program.region(keys).shape == (128, 2 * 16 * 4)
    assert not program.region(keys).any()
    logits(program)
    stored = program.region(keys).copy()
    assert np.flatnonzero(stored.any(axis=1)).tolist() == [64, 65, 66, 67, 68]
    program.region(keys)[:] = 0
    assert not program.region(keys).any()
    logits(program)
    assert_array_equal(program.region(keys), stored)


def test_what_is_no_region_is_refused_by_name() -> None:
    with pytest.raises(GraphError, match="table is no KV region"):
        compiled().region(value(GRAPH, "table").id)


def test_closing_gives_memory_back() -> None:
    program = compiled()
    logits(program)
    program.close()
    assert program.read(GRAPH.outputs["logits"], step_inputs([3], [])).size == 0
    with pytest.raises(KeyError):
        program.region(value(GRAPH, "0.k_cache").id)


# Threads, faults, observers.


@pytest.mark.parametrize("n_threads", [None, 1, 2])
def test_blas_is_held_to_one_thread_and_freed_afterwards(n_threads: int | None) -> None:
    """Whatever is asked for: with more, its sums would be other bits."""
    seen: list[int] = []

    class Spy:
        def begin_step(self, n_tokens: int, first_position: int) -> None: ...
        def close(self) -> None: ...
        def node_ran(self, event: NodeEvent) -> None:
            seen.extend(info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas")

    before = threadpool_info()
    compiled(n_threads=n_threads).run(0, step_inputs(), (Spy(),))
    assert set(seen) == {1}
    assert threadpool_info() == before


def test_infinities_and_nan_in_weights_are_data() -> None:
    """They go their way without a warning (which would be an error here), and without an exception."""

    class Faulty(RandomWeights):
        def packed(self, name: str) -> NDArray[np.uint8]:
            data = super().packed(name).copy()
            if name == "0.q.weight":
                data.view(np.float32)[0, :2] = math.inf, math.nan
            return data

    assert np.isnan(logits(compiled(weights=Faulty(GRAPH)))).all()


@dataclass
class Collector:
    events: list[tuple[NodeEvent, list[tuple[str, NDArray[Any]]]]] = field(default_factory=list)

    def begin_step(self, n_tokens: int, first_position: int) -> None:
        """Steps are told apart by the plan."""

    def node_ran(self, event: NodeEvent) -> None:
        self.events.append((event, [(name, array.copy()) for name, array in event.outputs]))

    def close(self) -> None:
        """Nothing is held open."""


def test_observers_see_every_node_with_its_outputs() -> None:
    collector = Collector()
    program = compiled(poison=True)
    program.run(0, step_inputs(), (collector,))
    events = [event for event, _ in collector.events]
    assert [(e.node, e.op, e.layer, e.backend) for e in events] == [
        (n.name, n.op.kind, n.layer, "reference") for n in GRAPH.nodes
    ]
    assert all(e.duration_s >= 0 for e in events)
    assert [e.start_s for e in events] == sorted(e.start_s for e in events)
    for (_, outputs), node in zip(collector.events, GRAPH.nodes, strict=True):
        assert [name for name, _ in outputs] == [GRAPH.value(i).name for i in node.outputs]
        assert [array.shape for _, array in outputs] == [
            GRAPH.value(i).spec.resolve(step_inputs().sizes()) for i in node.outputs
        ]
        assert all(np.isfinite(array).all() for _, array in outputs)
    assert same_bits(collector.events[-1][1][0][1], logits(compiled()))


def test_watching_changes_no_bits() -> None:
    program = compiled()
    step = step_inputs()
    program.run(0, step, (Collector(), Collector()))
    assert same_bits(program.read(GRAPH.outputs["logits"], step), logits(compiled()))


# Weights.


class CountingWeights(RandomWeights):
    """Counts what is read and what is released."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.reads: Counter[str] = Counter()
        self.releases: Counter[str] = Counter()

    def packed(self, name: str) -> NDArray[np.uint8]:
        self.reads[name] += 1
        return super().packed(name)

    def release(self, name: str) -> None:
        self.releases[name] += 1


@pytest.mark.parametrize("max_bytes", [0, 100_000, 1 << 30])
def test_the_cache_of_weights_keeps_to_its_size_and_changes_no_bits(max_bytes: int) -> None:
    weights = CountingWeights(GRAPH)
    program = compiled(backend=ReferenceBackend(max_bytes), weights=weights)
    first = logits(program)
    once = weights.reads.copy()
    assert same_bits(logits(program), first)
    assert same_bits(first, logits(compiled()))
    again = weights.reads - once
    matrices = set(once) - {"table"}  # the embedding reads single rows, and keeps nothing
    assert weights.releases == Counter({name: weights.reads[name] for name in matrices})
    if max_bytes == 0:
        assert all(again[name] == once[name] for name in matrices)
    elif max_bytes == 1 << 30:
        assert not again.keys() & matrices
    else:
        assert 0 < len(again.keys() & matrices) < len(matrices)


def test_the_cache_counts_its_bytes() -> None:
    cache = WeightCache(RandomWeights(GRAPH), 3 * 64 * 64 * 8)
    names = ["0.q.weight", "0.attn_output.weight", "1.q.weight", "1.attn_output.weight"]
    arrays = [cache.dequantised(name, value(GRAPH, name).spec) for name in names]
    assert cache.n_bytes == 3 * 64 * 64 * 8
    assert [cache.dequantised(n, value(GRAPH, n).spec) is a for n, a in zip(names, arrays, strict=True)] == [
        True,
        True,
        True,
        False,
    ]
    assert arrays[0].dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][0, 0] = 1.0


def test_only_the_nodes_of_its_segments_are_prepared() -> None:
    """A program for the last nodes has no region: those before belong to another backend."""
    last: Sequence[range] = (range(len(GRAPH.nodes) - 1, len(GRAPH.nodes)),)
    program = compiled(segments=tuple(last))
    with pytest.raises(KeyError):
        program.region(ids(GRAPH, "0.k_cache")[0])
