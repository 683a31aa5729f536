"""Embedding: y[t] = table[tokens[t]], dequantised."""

from __future__ import annotations

from types import MappingProxyType

from minfer.backends.reference.operands import Array32, Indices, Kernels, Weight
from minfer.graph.ops import Embedding


def embedding(op: Embedding, tokens: Indices, table: Weight) -> Array32:
    return table.rows(tokens)


KERNELS: Kernels = MappingProxyType({Embedding: embedding})
