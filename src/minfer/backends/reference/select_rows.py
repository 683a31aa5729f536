"""SelectRows: y[i] = x[rows[i]]."""

from __future__ import annotations

from types import MappingProxyType

from minfer.backends.reference.operands import Array32, Indices, Kernels
from minfer.graph.ops import SelectRows


def select_rows(op: SelectRows, x: Array32, rows: Indices) -> Array32:
    return x[rows]


KERNELS: Kernels = MappingProxyType({SelectRows: select_rows})
