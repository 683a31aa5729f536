"""What `Kernel` computes with: constants, lanes, arithmetic beyond the operators, reductions, dot4, lookup16, exp."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.simd.ir import (
    BinaryOp,
    Constant,
    Dot4,
    Extract,
    FirstLanes,
    FusedMultiplyAdd,
    Insert,
    Lookup16,
    Select,
    Shuffle,
    Splat,
    UnaryOp,
)
from minfer.simd.mathfn import exp
from minfer.simd.tracer import Tracer, ValueOrNumber
from minfer.simd.types import Scalar, Vector, element_of, f32, i1, i8, i32, i64, lanes_of, u8, vec, with_element
from minfer.simd.values import Value, binary, unary


class VectorOps(Tracer):
    """Traces computations on scalars and vectors."""

    def const(self, of: Scalar | Vector, value: float | Sequence[float]) -> Value:
        """A constant: one number for every lane, or one number a lane."""
        if isinstance(value, (int, float)):
            return Value(self, self.constant(value, of))
        element = element_of(of)
        if element is None or not isinstance(of, Vector) or len(value) != of.lanes:
            self.fail(f"{len(value)} numbers are no {of}")
        return Value(self, Constant(of, tuple(self.constant_element(number, element) for number in value)))

    def splat(self, x: Value, lanes: int) -> Value:
        """A vector with the scalar x in every lane."""
        operand = self.operand(x)
        if not isinstance(operand.type, Scalar):
            self.fail(f"splat repeats a scalar, not {operand.type}")
        of = vec(operand.type, lanes)
        return self.emit(of, lambda result, line: Splat(result, operand, location=line))

    def extract(self, x: Value, lane: int) -> Value:
        """Lane `lane` of a vector as a scalar."""
        operand, of = self.operand(x), self.check_vector(x, "extract's argument")
        self._check_lane(lane, of.lanes)
        return self.emit(of.element, lambda result, line: Extract(result, operand, lane, location=line))

    def insert(self, x: Value, lane: int, value: ValueOrNumber) -> Value:
        """The vector x with another scalar in lane `lane`."""
        operand, of = self.operand(x), self.check_vector(x, "insert's argument")
        self._check_lane(lane, of.lanes)
        scalar = self.coerce(value, of.element)
        return self.emit(of, lambda result, line: Insert(result, operand, lane, scalar, location=line))

    def shuffle(self, x: Value, indices: Sequence[int], y: Value | None = None) -> Value:
        """The vector whose lane i is lane `indices[i]` of x, or of x followed by y."""
        a, of = self.operand(x), self.check_vector(x, "shuffle's argument")
        b = None if y is None else self.coerce(y, of)
        n_lanes = of.lanes if b is None else 2 * of.lanes
        for index in indices:
            self._check_lane(index, n_lanes)
        chosen = tuple(indices)
        return self.emit(
            vec(of.element, len(chosen)), lambda result, line: Shuffle(result, a, b, chosen, location=line)
        )

    def concat(self, x: Value, y: Value) -> Value:
        """The lanes of x, then those of y, which has x's type."""
        return self.shuffle(x, range(2 * x.lanes), y)

    def lanes(self, x: Value, start: int, stop: int) -> Value:
        """The lanes start ... stop-1 of a vector."""
        return self.shuffle(x, range(start, stop))

    def select(self, mask: Value, a: ValueOrNumber, b: ValueOrNumber) -> Value:
        """a where the mask is true, else b, lane by lane. A mask of one i1 chooses between whole values."""
        if isinstance(a, Value):
            x = self.operand(a)
            y = self.coerce(b, x.type)
        elif isinstance(b, Value):
            y = self.operand(b)
            x = self.coerce(a, y.type)
        else:
            self.fail("select needs a traced value on one side")
        m = self.operand(mask)
        if m.type != i1 and m.type != with_element(x.type, i1):
            self.fail(f"select between {x.type} needs a mask of i1 or {with_element(x.type, i1)}, not {m.type}")
        return self.emit(x.type, lambda result, line: Select(result, m, x, y, location=line))

    def fma(self, a: Value, b: ValueOrNumber, c: ValueOrNumber) -> Value:
        """a * b + c, rounded once; for f32. (The product of two f32 is exact in f64: `a * b + c` serves there.)"""
        x = self.operand(a)
        if element_of(x.type) != f32:
            self.fail(f"fma is for f32, not {x.type}")
        y, z = self.coerce(b, x.type), self.coerce(c, x.type)
        return self.emit(x.type, lambda result, line: FusedMultiplyAdd(result, x, y, z, location=line))

    def minimum(self, a: ValueOrNumber, b: ValueOrNumber) -> Value:
        """a where a < b, else b: with NaN in either, or two zeros, it is b."""
        return binary(self, BinaryOp.MINIMUM, a, b)

    def maximum(self, a: ValueOrNumber, b: ValueOrNumber) -> Value:
        """a where a > b, else b: with NaN in either, or two zeros, it is b."""
        return binary(self, BinaryOp.MAXIMUM, a, b)

    def abs(self, x: Value) -> Value:
        """The magnitude; the smallest integer of a type stays as it is."""
        return unary(self, UnaryOp.ABSOLUTE, x)

    def sqrt(self, x: Value) -> Value:
        """The square root, correctly rounded."""
        return unary(self, UnaryOp.SQUARE_ROOT, x)

    def floor(self, x: Value) -> Value:
        """The largest whole float that is not above x."""
        return unary(self, UnaryOp.FLOOR, x)

    def round_even(self, x: Value) -> Value:
        """The nearest whole float, halves to even."""
        return unary(self, UnaryOp.ROUND_EVEN, x)

    def exp(self, x: Value) -> Value:
        """e**x for f32, with the same bits on every target; see `minfer.simd.mathfn`."""
        if element_of(self.operand(x).type) != f32:
            self.fail(f"exp is for f32, not {x.type}")
        return exp(self, x)

    def reduce_sum(self, x: Value) -> Value:
        """The sum of a vector's lanes: the upper half is added to the lower one, until one lane is left."""
        return self._reduce(BinaryOp.ADD, x)

    def reduce_max(self, x: Value) -> Value:
        """The largest lane, by the same tree as `reduce_sum`: `maximum(lower, upper)` of the halves."""
        return self._reduce(BinaryOp.MAXIMUM, x)

    def reduce_min(self, x: Value) -> Value:
        """The smallest lane, by the same tree as `reduce_sum`: `minimum(lower, upper)` of the halves."""
        return self._reduce(BinaryOp.MINIMUM, x)

    def first_lanes(self, n: ValueOrNumber, lanes: int) -> Value:
        """The mask whose lane i is true where i < n (i64): all false for n <= 0, all true for n >= lanes."""
        count = self.check_scalar(n, i64, "the number of lanes")
        return self.emit(vec(i1, lanes), lambda result, line: FirstLanes(result, count, location=line))

    def dot4(self, accumulator: Value, u: Value, s: Value, *, u_max: int = 255) -> Value:
        """accumulator[i] + the sum over j = 0..3 of u[4i + j] * s[4i + j], exact (modulo 2**32).

        `accumulator` is a vector of i32, u of u8 and s of i8 with four times its lanes. `u_max` promises that no lane
        of u is larger, which saves instructions where it is at most 127 (AVX2, Arm).
        """
        a = self.operand(accumulator)
        if not isinstance(a.type, Vector) or a.type.element != i32:
            self.fail(f"dot4 accumulates into a vector of i32, not {a.type}")
        if not 1 <= u_max <= 255:
            self.fail(f"u_max is 1 to 255, not {u_max}")
        x, y = self.coerce(u, vec(u8, 4 * a.type.lanes)), self.coerce(s, vec(i8, 4 * a.type.lanes))
        return self.emit(a.type, lambda result, line: Dot4(result, a, x, y, u_max, location=line))

    def lookup16(self, table: Sequence[int], indices: Value) -> Value:
        """The i8 vector of table[indices[i]]: 16 entries of i8, indices of u8 that must be below 16."""
        of = self.check_vector(indices, "lookup16's indices")
        if of.element != u8:
            self.fail(f"lookup16's indices are u8, not {of}")
        if len(table) != 16:
            self.fail(f"lookup16's table has 16 entries, not {len(table)}")
        entries = tuple(int(self.constant_element(entry, i8)) for entry in table)
        operand = self.operand(indices)
        return self.emit(vec(i8, of.lanes), lambda result, line: Lookup16(result, entries, operand, location=line))

    def _reduce(self, op: BinaryOp, x: Value) -> Value:
        n_lanes = lanes_of(self.check_vector(x, "a reduction's argument"))
        if n_lanes & (n_lanes - 1):
            self.fail(f"a reduction halves the lanes, and {n_lanes} is no power of two")
        while n_lanes > 1:
            n_lanes //= 2
            x = binary(self, op, self.lanes(x, 0, n_lanes), self.lanes(x, n_lanes, 2 * n_lanes))
        return self.extract(x, 0)

    def _check_lane(self, lane: int, n_lanes: int) -> None:
        if not 0 <= lane < n_lanes:
            self.fail(f"lane {lane} is out of the {n_lanes} there are")
