"""What passes are given besides the graph."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends import Backend
from minfer.errors import GraphError
from minfer.graph import Bounds, Graph, Node
from minfer.graph.ops import Op


@dataclass(frozen=True)
class PassContext:
    """The backends to use, in order of preference, and the largest sizes a step may have."""

    backends: tuple[Backend, ...]
    bounds: Bounds

    def backend_of(self, node: Node) -> Backend:
        """The backend that a node is assigned to."""
        for backend in self.backends:
            if backend.name == node.backend:
                return backend
        raise GraphError(f"{node.name} is assigned to {node.backend}, which is not among the backends")

    def supports(self, graph: Graph, node: Node, op: Op, inputs: tuple[int, ...]) -> bool:
        """Whether the backend of `node` could run `op` on `inputs` instead."""
        return self.backend_of(node).refusal(op, graph.specs(inputs)) is None
