"""Activations of registers, for the kernels that end in one: within 4 units in the last place; and soft-caps.

Source: Hendrycks and Gimpel, Gaussian error linear units (2016); Elfwing et al., SiLU (2017).
"""

from __future__ import annotations

from minfer.graph.ops import ActivationKind
from minfer.simd import Kernel, Value

_SMALL = 0.625
# (tanh(u) / u - 1) / u^2 as a polynomial of u^2 for |u| up to 0.625: a minimax fit, whose error is 0.08 units of tanh.
_TANH = (-0.3333328068256378, 0.13331441581249237, -0.053739700466394424, 0.02063904143869877, -0.005704933777451515)


def activate(k: Kernel, kind: ActivationKind, x: Value) -> Value:
    """SiLU, or GELU's tanh form written as x * sigmoid(2 y)."""
    match kind:
        case ActivationKind.SILU:
            return x / (k.exp(-x) + 1.0)
        case ActivationKind.GELU:
            y = (x * x * x * 0.044715 + x) * 1.5957691216057308
            return x / (k.exp(-y) + 1.0)


def tanh(k: Kernel, x: Value) -> Value:
    """tanh x, off by at most 5 units roundoff (2^-24 of the result).

    Small x: u + u^3 p(u^2) loses no digits. Large x: 1 - 2 / (exp(2 |x|) + 1), with the sign of x.
    """
    square = x * x
    p = k.fma(square, _TANH[4], _TANH[3])
    for coefficient in _TANH[2::-1]:
        p = k.fma(p, square, coefficient)
    size = k.abs(x)
    large = 1.0 - 2.0 / (k.exp(size + size) + 1.0)
    return k.select(size < _SMALL, k.fma(x * square, p, x), k.select(x < 0.0, -large, large))


def softcap(k: Kernel, x: Value, limit: float) -> Value:
    """limit * tanh(x / limit), off by at most 8 units roundoff: those of tanh, and of three more roundings."""
    return tanh(k, x * (1.0 / limit)) * limit
