"""Add and Multiply, in float32: one rounding an element."""

from __future__ import annotations

from types import MappingProxyType

from minfer.backends.reference.operands import Array32, Kernels
from minfer.graph.ops import Add, Multiply


def add(op: Add, a: Array32, b: Array32) -> Array32:
    return a + b


def multiply(op: Multiply, a: Array32, b: Array32) -> Array32:
    return a * b


KERNELS: Kernels = MappingProxyType({Add: add, Multiply: multiply})
