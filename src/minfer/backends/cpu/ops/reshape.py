"""Reshape: nothing to do, since the result lives where the input does."""

from __future__ import annotations

from minfer.backends.cpu.emission import CpuOp, Emission
from minfer.errors import GraphError
from minfer.graph import Node
from minfer.graph.ops import Reshape


def _emit(e: Emission, node: Node, op: Reshape) -> None:
    if e.graph.storage(node.outputs[0]) != e.graph.storage(node.inputs[0]):
        raise GraphError(f"{node.name}: a reshape of what lives in other storage")


OPS = (CpuOp(Reshape, _emit),)
