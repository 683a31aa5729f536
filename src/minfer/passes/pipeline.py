"""THE list: every pass, in order. After each one the graph is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from minfer.graph import Graph, verify
from minfer.passes.alias import alias
from minfer.passes.assign import assign
from minfer.passes.context import PassContext
from minfer.passes.fuse import fuse_add_norm, fuse_gated_activation, fuse_gated_matmul, fuse_matmul_group
from minfer.passes.narrow import narrow
from minfer.passes.plan_memory import plan_memory
from minfer.passes.prune import prune
from minfer.passes.split import split

Pass = Callable[[Graph, PassContext], Graph]

PIPELINE: Final[tuple[tuple[str, Pass], ...]] = (
    ("narrow", narrow),
    ("assign", assign),
    ("fuse_gated_activation", fuse_gated_activation),
    ("fuse_gated_matmul", fuse_gated_matmul),
    ("fuse_add_norm", fuse_add_norm),
    ("fuse_matmul_group", fuse_matmul_group),
    ("prune", prune),
    ("split", split),
    ("alias", alias),
    ("plan_memory", plan_memory),
)


def run_passes(
    graph: Graph, context: PassContext, pipeline: tuple[tuple[str, Pass], ...] = PIPELINE
) -> Iterator[tuple[str, Graph]]:
    """Yields ("built", graph), then (name, graph) after each pass, each one verified."""
    verify(graph)
    yield "built", graph
    for name, run in pipeline:
        graph = run(graph, context)
        verify(graph, context.bounds)
        yield name, graph


def lower(graph: Graph, context: PassContext) -> Graph:
    """The graph after all passes.

    Raises:
        UnsupportedError: an op that none of the backends supports.
        GraphError: a pass broke an invariant.
    """
    *_, (_, lowered) = run_passes(graph, context)
    return lowered
