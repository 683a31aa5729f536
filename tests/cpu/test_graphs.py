"""Graphs of any make on the CPU backend against the reference: what no model does, a graph may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

from cpu_runner import check_close
from minfer.backends import Backend, CompileRequest
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.graph import Graph, GraphBuilder
from minfer.graph.ops import Rope, RopeStyle
from minfer.passes import PassContext, lower
from minfer.quants import GGMLType
from random_graphs import random_graphs
from small_graphs import BOUNDS, RandomWeights, dense_graph, step_inputs

UNIT = 2.0**-24


def run(graph: Graph, backend: Backend) -> dict[str, NDArray[np.float32]]:
    """The outputs of a step of five tokens, with NaN in memory that holds nothing."""
    lowered = lower(graph, PassContext((backend,), BOUNDS))
    segments = (range(len(lowered.nodes)),)
    program = backend.compile(CompileRequest(lowered, segments, RandomWeights(lowered), BOUNDS, 2, poison=True))
    try:
        inputs = step_inputs()
        program.run(0, inputs, ())
        return {name: program.read(value_id, inputs).copy() for name, value_id in lowered.outputs.items()}
    finally:
        program.close()


def check(graph: Graph) -> None:
    want, got = run(graph, ReferenceBackend()), run(graph, CpuBackend())
    assert want.keys() == got.keys()
    for name, exact in want.items():
        largest = np.abs(exact).max()
        if 0 < largest < 1e30:  # squares of squares may leave float32's range
            # Chains of at most 16 ops, which may double an error each time that they multiply a value with itself.
            check_close(got[name], exact, 2.0**16 * UNIT * largest)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_graphs())
def test_any_graph(graph: Graph) -> None:
    check(graph)


def test_a_decoder() -> None:
    check(dense_graph())


@pytest.mark.parametrize("poison", [True, False])
def test_what_is_not_needed_any_more_becomes_nan_where_that_is_asked_for(poison: bool) -> None:
    """What the tests with NaN in memory rest on."""
    lowered = lower(dense_graph(), PassContext((CpuBackend(),), BOUNDS))
    segments = (range(len(lowered.nodes)),)
    program = CpuBackend().compile(CompileRequest(lowered, segments, RandomWeights(lowered), BOUNDS, 1, poison=poison))
    program.run(0, step_inputs(), ())
    (logits,) = lowered.outputs.values()
    assert lowered.memory is not None
    place = lowered.memory.placements[logits]
    rest = program._arena._memory.copy()
    rest[place.offset : place.offset + place.n_bytes] = 0xFF
    assert np.isfinite(program.read(logits, step_inputs())).all()
    assert np.isnan(rest.view(np.float32)).all() == poison
    program.close()


def rotations(*ropes: Rope) -> Graph:
    """One value turned by each, and the sum of all."""
    b = GraphBuilder()
    x = b.split_heads(b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "embedding"), 4, "x")
    total = x
    for i, op in enumerate(ropes):
        total = b.add(total, b.rope(x, b.input("positions"), op, f"turned{i}"), f"sum{i}")
    return b.build({"logits": b.merge_heads(total, "logits")})


SLOW, FAST = (0.1, 0.01, 0.001), (1.0, 0.5, 0.25)


@pytest.mark.parametrize(
    "other",
    [
        Rope(RopeStyle.INTERLEAVED, SLOW),
        Rope(RopeStyle.NON_INTERLEAVED, FAST),
        Rope(RopeStyle.INTERLEAVED, FAST, 1.5),
        Rope(RopeStyle.INTERLEAVED, FAST[:2]),
    ],
    ids=["speeds", "style", "magnitude", "width"],
)
def test_rotations_of_two_kinds_in_one_graph(other: Rope) -> None:
    graph = rotations(Rope(RopeStyle.INTERLEAVED, FAST), other)
    want, got = (run(graph, backend)["logits"] for backend in (ReferenceBackend(), CpuBackend()))
    # The embedding once and two rotations of it: each sum is rounded, and a rotation three times for either of a pair.
    check_close(got, want, 16 * UNIT * np.abs(want).max())
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(run(rotations(other, other), CpuBackend())["logits"], want, 16 * UNIT * np.abs(want).max())


def test_the_kernels_of_graphs_are_kept_apart(tmp_path: Path) -> None:
    """In one cache."""
    ops = [Rope(RopeStyle.INTERLEAVED, FAST), Rope(RopeStyle.NON_INTERLEAVED, FAST)]
    first = [run(rotations(op), CpuBackend(None, tmp_path / "kernels"))["logits"] for op in ops]
    again = [run(rotations(op), CpuBackend(None, tmp_path / "kernels"))["logits"] for op in ops]
    assert not np.array_equal(*first)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
