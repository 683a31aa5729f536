"""Activation and GatedActivation, in float64, rounded to float32.

SiLU: Elfwing et al. (2017). GELU, tanh form: Hendrycks and Gimpel (2016). SwiGLU: Shazeer, "GLU Variants" (2020).
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from minfer.backends.reference.operands import Array32, Kernels
from minfer.graph.ops import Activation, ActivationKind, GatedActivation


def activation(op: Activation, x: Array32) -> Array32:
    wide = x.astype(np.float64)
    match op.activation:
        case ActivationKind.SILU:
            # exp of a large positive number is inf, and x / inf is the right answer, -0.
            y = wide / (1.0 + np.exp(-wide))
        case ActivationKind.GELU:
            # 0.5 (1 + tanh(z)) is 1 / (1 + exp(-2 z)), which loses no digits where tanh is close to -1.
            y = wide / (1.0 + np.exp(-2.0 * np.sqrt(2.0 / np.pi) * (wide + 0.044715 * wide**3)))
    return y.astype(np.float32)


def gated_activation(op: GatedActivation, gate: Array32, up: Array32) -> Array32:
    return activation(Activation(op.activation), gate) * up


KERNELS: Kernels = MappingProxyType({Activation: activation, GatedActivation: gated_activation})
