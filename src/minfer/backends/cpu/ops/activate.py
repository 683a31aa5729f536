"""Activations of registers, for the kernels that end in one: within 4 units in the last place.

Source: Hendrycks and Gimpel, Gaussian error linear units (2016); Elfwing et al., SiLU (2017).
"""

from __future__ import annotations

from minfer.graph.ops import ActivationKind
from minfer.simd import Kernel, Value


def activate(k: Kernel, kind: ActivationKind, x: Value) -> Value:
    """SiLU, or GELU's tanh form written as x * sigmoid(2 y)."""
    match kind:
        case ActivationKind.SILU:
            return x / (k.exp(-x) + 1.0)
        case ActivationKind.GELU:
            y = (x * x * x * 0.044715 + x) * 1.5957691216057308
            return x / (k.exp(-y) + 1.0)
