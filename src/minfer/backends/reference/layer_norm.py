"""LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias over the last dimension, in float64.

Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.operands import Array32, Kernels, Weight
from minfer.graph.ops import LayerNorm


def layer_norm(op: LayerNorm, x: Array32, weight: Weight, bias: Weight | None = None) -> Array32:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + op.eps) * weight.dequantised()
    if bias is not None:
        y = y + bias.dequantised()
    rounded: Array32 = y.astype(np.float32)
    return rounded


KERNELS: Kernels = MappingProxyType({LayerNorm: layer_norm})
