"""exp for f32 in terms of the language itself, so that every target and the interpreter give the same bits.

e**x = 2**n * e**r with n = round(x / ln 2) and r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2]. ln 2 is split into two floats
whose first has trailing zeros, so that n times it is exact (Cody and Waite, "Software Manual for the Elementary
Functions", 1980); e**r is 1 + r + r**2 q(r) with q a minimax polynomial of degree 4. 2**n is applied in two
factors, since it can be out of range where the result is not (results below 2**-126 round once, at the last factor).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minfer.simd.types import Scalar, Vector, i32, with_element

if TYPE_CHECKING:
    from minfer.simd.values import Value
    from minfer.simd.vector_ops import VectorOps

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.4286068203094172e-06
# 1.5 * 2**23: added to a small number it leaves the nearest integer in the low bits of the mantissa.
_ROUNDER = 12582912.0
# Beyond these the result is infinite, or rounds to zero; clamping keeps n small. NaN passes both.
_HIGHEST = 89.0
_LOWEST = -104.0
_Q = (0.49999994, 0.16666521, 0.04166839, 0.008368745, 0.0013814540)


def exp(k: VectorOps, x: Value) -> Value:
    """Traces e**x for a scalar or vector of f32.

    The error is below 0.8 ulp (0.795 over all floats, against float64). exp(0) is 1; above 88.722839 (the logarithm of
    the largest f32) the result is +inf, from -103.97208 down it is 0; NaN stays NaN.
    """
    integer = with_element(x.type, i32)
    x = k.maximum(_LOWEST, k.minimum(_HIGHEST, x))
    shifted = k.fma(x, _LOG2_E, _ROUNDER)
    n_float = shifted - _ROUNDER
    r = k.fma(n_float, -_LN2_LOW, k.fma(n_float, -_LN2_HIGH, x))
    q = k.fma(r, _Q[4], _Q[3])
    for coefficient in _Q[2::-1]:
        q = k.fma(q, r, coefficient)
    # 1 + r is rounded, and what that lost goes into the small terms.
    one_and_r = r + 1.0
    lost = r - (one_and_r - 1.0)
    power = one_and_r + k.fma(r * r, q, lost)
    n = shifted.bitcast(integer) - 0x4B400000
    half = n >> 1
    first = ((half + 127) << 23).bitcast(_like(x))
    second = (((n - half) + 127) << 23).bitcast(_like(x))
    return power * first * second


def _like(x: Value) -> Scalar | Vector:
    of = x.type
    assert isinstance(of, (Scalar, Vector))
    return of
