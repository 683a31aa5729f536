"""Rope: turns pairs of dimensions by position * frequency.

(a, b) -> magnitude * (a cos t - b sin t, a sin t + b cos t) with t = position * frequencies[i] in float64, where the
pair (a, b) is dimensions (2i, 2i + 1) or (i, i + n_rot/2) by style. The angle is rounded once, to 2^-53 of itself: that
is 1.2e-11 at position 100,000 and frequency 1. Source: Su et al., "RoFormer" (2021).
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.operands import Array32, Indices, Kernels
from minfer.graph.ops import Rope, RopeStyle


def rope(op: Rope, x: Array32, positions: Indices) -> Array32:
    angles = positions.astype(np.float64)[:, None] * np.asarray(op.frequencies, np.float64)
    cos = (np.cos(angles) * op.magnitude)[:, None, :]
    sin = (np.sin(angles) * op.magnitude)[:, None, :]
    match op.style:
        case RopeStyle.INTERLEAVED:
            first, second = slice(0, op.n_rot, 2), slice(1, op.n_rot, 2)
        case RopeStyle.NON_INTERLEAVED:
            first, second = slice(0, op.n_rot // 2), slice(op.n_rot // 2, op.n_rot)
    wide = x.astype(np.float64)
    a, b = wide[..., first], wide[..., second]
    y = wide.copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y.astype(np.float32)


KERNELS: Kernels = MappingProxyType({Rope: rope})
