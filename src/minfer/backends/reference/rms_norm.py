"""RMSNorm and AddRMSNorm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float64.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.operands import Array32, Kernels, Weight
from minfer.graph.ops import AddRMSNorm, RMSNorm


def rms_norm(op: RMSNorm, x: Array32, weight: Weight) -> Array32:
    wide = x.astype(np.float64)
    scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + op.eps)
    y: Array32 = (wide * scale * weight.dequantised()).astype(np.float32)
    return y


def add_rms_norm(op: AddRMSNorm, a: Array32, b: Array32, weight: Weight) -> tuple[Array32, Array32]:
    total = a + b
    return total, rms_norm(RMSNorm(op.eps), total, weight)


KERNELS: Kernels = MappingProxyType({RMSNorm: rms_norm, AddRMSNorm: add_rms_norm})
