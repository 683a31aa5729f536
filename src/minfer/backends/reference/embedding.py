"""Embedding: y[t] = table[tokens[t]], dequantised."""

from __future__ import annotations

from minfer.backends.reference.operands import Array32, Indices, Weight
from minfer.graph.ops import Embedding


def embedding(op: Embedding, tokens: Indices, table: Weight) -> Array32:
    return table.rows(tokens)
