"""Reshape: the same values under another shape."""

from __future__ import annotations

from types import MappingProxyType

from minfer.backends.reference.operands import Array32, Kernels
from minfer.graph import Symbol
from minfer.graph.ops import Reshape


def reshape(op: Reshape, x: Array32) -> Array32:
    return x.reshape([x.shape[0] if isinstance(dim, Symbol) else dim for dim in op.shape])


KERNELS: Kernels = MappingProxyType({Reshape: reshape})
