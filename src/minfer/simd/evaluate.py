"""What each computing instruction means, on NumPy arrays: bit for bit what compiled code computes.

A value is an array with one entry a lane (one for a scalar); bf16 is its bits as uint16, i1 is bool. Only which NaN
an operation gives is left open, here as on CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.simd.dtypes import DTYPES
from minfer.simd.ir import BinaryOp, CompareOp, ConvertOp, UnaryOp
from minfer.simd.types import Scalar, Vector, bf16, element_of

Lanes = NDArray[Any]

_INT_MIN = -(2**31)


class UndefinedError(Exception):
    """The operation has no defined result for these operands: compiled code must never meet them."""


def dtype_of(element: Scalar) -> np.dtype[Any]:
    """The dtype of the lanes of a type."""
    return DTYPES[element.name]


def binary(op: BinaryOp, a: Lanes, b: Lanes) -> Lanes:
    """a op b. Integers wrap around."""
    match op:
        case BinaryOp.ADD:
            return a + b
        case BinaryOp.SUBTRACT:
            return a - b
        case BinaryOp.MULTIPLY:
            return a * b
        case BinaryOp.DIVIDE:
            return a / b
        case BinaryOp.FLOOR_DIVIDE:
            _check_division(a, b)
            return a // b
        case BinaryOp.MODULO:
            _check_division(a, b)
            return a % b
        case BinaryOp.AND:
            return a & b
        case BinaryOp.OR:
            return a | b
        case BinaryOp.XOR:
            return a ^ b
        case BinaryOp.SHIFT_LEFT:
            _check_shift(b)
            return a << b
        case BinaryOp.SHIFT_RIGHT:
            _check_shift(b)
            return a >> b
        case BinaryOp.MINIMUM:
            return np.where(a < b, a, b)
        case BinaryOp.MAXIMUM:
            return np.where(a > b, a, b)


def unary(op: UnaryOp, a: Lanes) -> Lanes:
    """op a."""
    match op:
        case UnaryOp.NEGATE:
            return np.negative(a)
        case UnaryOp.INVERT:
            return np.invert(a)
        case UnaryOp.ABSOLUTE:
            return np.abs(a)
        case UnaryOp.SQUARE_ROOT:
            return np.sqrt(a)
        case UnaryOp.FLOOR:
            return np.floor(a)
        case UnaryOp.ROUND_EVEN:
            return np.rint(a)


def compare(op: CompareOp, a: Lanes, b: Lanes) -> Lanes:
    """a op b, as bool."""
    match op:
        case CompareOp.LESS:
            return a < b
        case CompareOp.LESS_EQUAL:
            return a <= b
        case CompareOp.GREATER:
            return a > b
        case CompareOp.GREATER_EQUAL:
            return a >= b
        case CompareOp.EQUAL:
            return np.equal(a, b)
        case CompareOp.NOT_EQUAL:
            return np.not_equal(a, b)


def fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """a * b + c of float32, rounded once.

    The product of two float32 is exact in float64. Its sum with c is rounded to odd there: where the sum is inexact
    (Knuth's two-sum tells the error) and its last bit is 0, it moves by one unit toward the exact value. Rounding that
    to float32 is right, subnormal numbers included, since float64 has more than two bits to spare (Boldo and Melquiond,
    2008). Rounding a plain float64 sum instead would round twice.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    addend_part = total - product
    error = (product - (total - addend_part)) + (addend - addend_part)
    bits = total.view(np.int64)
    # With an infinity or NaN the error is NaN, and both comparisons are false.
    inexact = (error > 0) | (error < 0)
    step = np.where((error > 0) ^ (total < 0), 1, -1)
    odd = np.where(inexact & ((bits & 1) == 0), bits + step, bits)
    return odd.view(np.float64).astype(np.float32)


def convert(op: ConvertOp, source: Scalar | Vector, to: Scalar | Vector, a: Lanes) -> Lanes:
    """a of type `source` as a `to`."""
    x, y = element_of(source), element_of(to)
    assert x is not None
    assert y is not None
    match op:
        case ConvertOp.BITCAST:
            return np.ascontiguousarray(a).view(dtype_of(y))
        case ConvertOp.SATURATE:
            low, high = max(x.smallest, y.smallest), min(x.largest, y.largest)
            return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(dtype_of(y))
        case ConvertOp.ROUND:
            return _to_i32(a, np.rint(a))
        case ConvertOp.TRUNCATE:
            return _to_i32(a, np.trunc(a))
        case ConvertOp.NUMERIC if x == bf16:
            return (a.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case ConvertOp.NUMERIC if y == bf16:
            return _to_bf16(a)
        case ConvertOp.NUMERIC:
            return a.astype(dtype_of(y))


def dot4(accumulator: Lanes, u: Lanes, s: Lanes, u_max: int) -> Lanes:
    """accumulator plus the sums of four products each."""
    if int(u.max()) > u_max:
        raise UndefinedError(f"a lane of u is {int(u.max())}, and u_max promises {u_max} at the most")
    products = u.astype(np.int64) * s.astype(np.int64)
    total: Lanes = accumulator + products.reshape(-1, 4).sum(axis=1)
    return total.astype(np.int32)


def lookup16(table: Sequence[int], indices: Lanes) -> Lanes:
    """table[indices]."""
    if int(indices.max()) > 15:
        raise UndefinedError(f"the index {int(indices.max())} is beyond the table of 16")
    entries: Lanes = np.array(table, np.int8)
    return entries.take(indices)


def _to_i32(a: Lanes, whole: Lanes) -> Lanes:
    fits = np.abs(a) < np.float32(2**31)
    return np.where(fits, np.where(fits, whole, 0).astype(np.int32), np.int32(_INT_MIN))


def _to_bf16(a: Lanes) -> Lanes:
    """To nearest even: half a unit of the last place is added, a little less where the number is even already."""
    bits = a.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(a), quiet, rounded).astype(np.uint16)


def _check_division(a: Lanes, b: Lanes) -> None:
    if not b.all():
        raise UndefinedError("division by zero")
    if a.dtype.kind == "i" and bool((b == -1).any()) and bool((a == np.iinfo(a.dtype).min).any()):
        raise UndefinedError("the smallest integer divided by -1 does not fit")


def _check_shift(b: Lanes) -> None:
    bits = 8 * b.dtype.itemsize
    if bool((b < 0).any()) or bool((b >= bits).any()):
        raise UndefinedError(f"a shift by {b.tolist()} is out of the {bits} bits there are")
