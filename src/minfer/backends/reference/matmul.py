"""MatMul, MatMulGroup, GatedMatMul: y = x w^T (+ bias), products and sums in float64, rounded once to float32.

Every token's result is the same bits whatever its neighbours. BLAS may add in another order for another shape, so it is
only ever called with one shape a weight: tiles of `TILE` tokens, the last filled up with zeros. (It may too for another
number of threads: the program holds it to one.)
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.activation import gated_activation
from minfer.backends.reference.operands import Array32, Array64, Kernels, Weight
from minfer.graph.ops import GatedActivation, GatedMatMul, MatMul, MatMulGroup

TILE = 8
"""Tokens a BLAS call. Few enough that decoding one token stays bound by reading the weights."""


def matmul(op: MatMul, x: Array32, weight: Weight, bias: Weight | None = None) -> Array32:
    return _project(x, weight.dequantised(), None if bias is None else bias.dequantised())


def matmul_group(op: MatMulGroup, x: Array32, *operands: Weight) -> tuple[Array32, ...]:
    pairs = op.split_inputs(1 + len(operands))
    return tuple(matmul(MatMul(), x, operands[w - 1], None if b is None else operands[b - 1]) for w, b in pairs)


def gated_matmul(op: GatedMatMul, x: Array32, gate: Weight, up: Weight) -> Array32:
    return gated_activation(
        GatedActivation(op.activation), _project(x, gate.dequantised(), None), _project(x, up.dequantised(), None)
    )


def _project(x: Array32, weight: Array64, bias: Array64 | None) -> Array32:
    n_tokens, n_columns = x.shape
    y = np.empty((n_tokens, weight.shape[0]), np.float32)
    tile = np.zeros((TILE, n_columns))
    for start in range(0, n_tokens, TILE):
        n = min(TILE, n_tokens - start)
        tile[:n] = x[start : start + n]
        tile[n:] = 0.0
        rows = (tile @ weight.T)[:n]
        y[start : start + n] = rows if bias is None else rows + bias
    return y


KERNELS: Kernels = MappingProxyType({MatMul: matmul, MatMulGroup: matmul_group, GatedMatMul: gated_matmul})
