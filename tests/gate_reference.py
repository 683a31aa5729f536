"""Gates in float64, and how far float32 may be from them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from minfer.graph.ops import ActivationKind

_UNIT = 2.0**-24


def gate_and_bound(
    kind: ActivationKind, gate: NDArray[np.float32], up: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """activation(gate) * up, and the error that float32 arithmetic may make of it.

    Both activations are x * sigmoid(z). For GELU, z = 2 sqrt(2/pi) (x + 0.044715 x^3): the form with tanh is equal,
    but cancels in 1 + tanh where x is far below zero. Roundings: exp has 2, the sum with 1, the quotient and the
    product with up one each, and one more covers what is of second order. z has 7 for GELU; an error in the argument
    of exp counts as often as the argument is large. Where exp(-z) leaves float32, the result is zero.
    """
    x = gate.astype(np.float64)
    z = x if kind is ActivationKind.SILU else 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        value = x / (1 + np.exp(-z)) * up
    n_roundings = 6 + (0 if kind is ActivationKind.SILU else 7 * np.abs(z))
    lost = float(np.finfo(np.float32).tiny) * (1 + np.abs(x)) * (1 + np.abs(up))
    return value, n_roundings * _UNIT * np.abs(value) + lost
