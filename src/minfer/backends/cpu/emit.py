"""From nodes to entries of the tape.

Nodes that run as one are a *unit*; where a trace is wanted, units are run one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minfer.backends.cpu.emission import CpuGroup, Emission, Prepare
from minfer.backends.cpu.ops import GROUPS, OPS
from minfer.errors import GraphError
from minfer.graph import Node


@dataclass(frozen=True)
class Unit:
    """Nodes that run together: what the host does first, and their entries."""

    nodes: range
    entries: range
    prepare: Prepare | None = None


def emit_segment(emission: Emission, segment: range) -> list[Unit]:
    """Adds the entries of a segment to the tape: its units, in order.

    Raises:
        GraphError: a node has an op that this backend refuses.
    """
    units: list[Unit] = []
    entries, index = emission.tape.entries, segment.start
    while index < segment.stop:
        first = len(entries)
        nodes = emission.graph.nodes[index : segment.stop]
        group = next((group for group in GROUPS if _fits(emission, group, nodes)), None)
        if group is not None:
            n_nodes = len(group.ops)
            prepare = group.emit(emission, nodes[:n_nodes])
        else:
            n_nodes = 1
            prepare = _emit(emission, nodes[0])
        units.append(Unit(range(index, index + n_nodes), range(first, len(entries)), prepare))
        index += n_nodes
    return units


def _fits(emission: Emission, group: CpuGroup, nodes: Sequence[Node]) -> bool:
    first = nodes[: len(group.ops)]
    return tuple(type(node.op) for node in first) == group.ops and group.fits(emission, first)


def _emit(emission: Emission, node: Node) -> Prepare | None:
    implementation = OPS.get(type(node.op))
    if implementation is None:
        raise GraphError(f"{node.name}: {node.op.kind} is not emitted by this backend")
    return implementation.emit(emission, node, node.op)
