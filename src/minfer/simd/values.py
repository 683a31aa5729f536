"""`Value`: what traced expressions are made of. Operators trace instructions; both sides must have one type.

A Python number beside a value becomes a constant of the value's type. Integers wrap around on overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from minfer.simd.ir import (
    Binary,
    BinaryOp,
    CastPointer,
    Compare,
    CompareOp,
    Convert,
    ConvertOp,
    Offset,
    Operand,
    Unary,
    UnaryOp,
)
from minfer.simd.types import (
    KernelPointer,
    Kind,
    Pointee,
    Pointer,
    Scalar,
    Type,
    Vector,
    element_of,
    f32,
    f64,
    i1,
    i64,
    lanes_of,
    ptr,
    size_in_memory,
    with_element,
)

if TYPE_CHECKING:
    from minfer.simd.tracer import Tracer

_INTEGER_ONLY = frozenset({BinaryOp.SHIFT_LEFT, BinaryOp.SHIFT_RIGHT, BinaryOp.FLOOR_DIVIDE, BinaryOp.MODULO})
_BITWISE = frozenset({BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR})


class Value:
    """A value of the kernel being traced: a scalar, a vector or a pointer.

    `+ - * / // % & | ^ << >>` and `< <= > >=` trace instructions; equality is `a.eq(b)` and `a.ne(b)`.
    `//` and `%` are for integer scalars and round down, as in Python. `>>` copies the sign of signed types.
    A pointer plus n (an int or an i64) moves by n elements.
    """

    __slots__ = ("operand", "tracer")
    __hash__ = None  # type: ignore[assignment]  # a value is no key: `==` on it would be a trap

    def __init__(self, tracer: Tracer, operand: Operand) -> None:
        self.tracer = tracer
        self.operand = operand

    @property
    def type(self) -> Type:
        return self.operand.type

    @property
    def lanes(self) -> int:
        """Lanes of a vector; 1 for a scalar."""
        return lanes_of(self.type)

    def __repr__(self) -> str:
        return f"<{self.type} in kernel {self.tracer.name!r}>"

    def __bool__(self) -> NoReturn:
        self.tracer.fail("a traced value has no truth while tracing: use k.if_, k.while_ or k.select")

    def __iter__(self) -> NoReturn:
        self.tracer.fail("a traced value can't be iterated over: use k.extract for single lanes")

    def __eq__(self, other: object) -> NoReturn:
        self.tracer.fail("== compares Python objects: use a.eq(b)")

    def __ne__(self, other: object) -> NoReturn:
        self.tracer.fail("!= compares Python objects: use a.ne(b)")

    def __add__(self, other: Value | int | float) -> Value:
        if isinstance(self.type, Pointer):
            return self._moved(other, size_in_memory(self.type.to))
        return binary(self.tracer, BinaryOp.ADD, self, other)

    def __radd__(self, other: int | float) -> Value:
        return binary(self.tracer, BinaryOp.ADD, other, self)

    def __sub__(self, other: Value | int | float) -> Value:
        if isinstance(self.type, Pointer):
            self.tracer.fail("pointers are not subtracted from: add a negative index")
        return binary(self.tracer, BinaryOp.SUBTRACT, self, other)

    def __rsub__(self, other: int | float) -> Value:
        return binary(self.tracer, BinaryOp.SUBTRACT, other, self)

    def __mul__(self, other: Value | int | float) -> Value:
        return binary(self.tracer, BinaryOp.MULTIPLY, self, other)

    def __rmul__(self, other: int | float) -> Value:
        return binary(self.tracer, BinaryOp.MULTIPLY, other, self)

    def __truediv__(self, other: Value | int | float) -> Value:
        return binary(self.tracer, BinaryOp.DIVIDE, self, other)

    def __rtruediv__(self, other: int | float) -> Value:
        return binary(self.tracer, BinaryOp.DIVIDE, other, self)

    def __floordiv__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.FLOOR_DIVIDE, self, other)

    def __mod__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.MODULO, self, other)

    def __and__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.AND, self, other)

    def __or__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.OR, self, other)

    def __xor__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.XOR, self, other)

    def __lshift__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.SHIFT_LEFT, self, other)

    def __rshift__(self, other: Value | int) -> Value:
        return binary(self.tracer, BinaryOp.SHIFT_RIGHT, self, other)

    def __neg__(self) -> Value:
        return unary(self.tracer, UnaryOp.NEGATE, self)

    def __invert__(self) -> Value:
        return unary(self.tracer, UnaryOp.INVERT, self)

    def __lt__(self, other: Value | int | float) -> Value:
        return compare(self.tracer, CompareOp.LESS, self, other)

    def __le__(self, other: Value | int | float) -> Value:
        return compare(self.tracer, CompareOp.LESS_EQUAL, self, other)

    def __gt__(self, other: Value | int | float) -> Value:
        return compare(self.tracer, CompareOp.GREATER, self, other)

    def __ge__(self, other: Value | int | float) -> Value:
        return compare(self.tracer, CompareOp.GREATER_EQUAL, self, other)

    def eq(self, other: Value | int | float) -> Value:
        """Whether equal, lane by lane; NaN equals nothing."""
        return compare(self.tracer, CompareOp.EQUAL, self, other)

    def ne(self, other: Value | int | float) -> Value:
        """Whether different, lane by lane; true where either is NaN."""
        return compare(self.tracer, CompareOp.NOT_EQUAL, self, other)

    def to(self, element: Scalar) -> Value:
        """Converts each lane by value.

        Integers widen by their own signedness and keep the low bits when they narrow; integers to floats, and wide
        floats to narrow ones, round to nearest even. `f16` and `bf16` convert to and from `f32` only.
        """
        return _convert_numeric(self, element)

    def round_to(self, element: Scalar) -> Value:
        """f32 to i32, to nearest even. What does not fit, and NaN, gives -2**31."""
        return _convert_float_to_int(self, element, ConvertOp.ROUND)

    def trunc_to(self, element: Scalar) -> Value:
        """f32 to i32, toward zero. What does not fit, and NaN, gives -2**31."""
        return _convert_float_to_int(self, element, ConvertOp.TRUNCATE)

    def saturate_to(self, element: Scalar) -> Value:
        """An integer to a narrower one; what does not fit becomes the nearest that does."""
        source = element_of(self.type)
        if source is None or not source.is_integer or not element.is_integer or element.bits >= source.bits:
            self.tracer.fail(f"saturate_to narrows integers; it can't make {element} of {self.type}")
        return _convert(self, ConvertOp.SATURATE, with_element(self.type, element))

    def bitcast(self, to: Scalar | Vector) -> Value:
        """The same bits, read as another type of the same size. The first lane has the lowest bits."""
        source, target = element_of(self.type), element_of(to)
        if source is None or target is None or i1 in (source, target):
            self.tracer.fail(f"bits can't be cast from {self.type} to {to}; pointers have .cast")
        if source.bits * self.lanes != target.bits * lanes_of(to):
            self.tracer.fail(f"{self.type} and {to} differ in size: the bits can't be cast")
        return _convert(self, ConvertOp.BITCAST, to)

    def offset_bytes(self, n_bytes: Value | int) -> Value:
        """A pointer moved by bytes; its type stays."""
        return self._moved(n_bytes, 1)

    def cast(self, to: Pointee) -> Value:
        """The same address as a pointer to another type."""
        operand = self.tracer.operand(self)
        if not isinstance(operand.type, Pointer):
            self.tracer.fail(f"cast is for pointers, not {self.type}: numbers have .to and .bitcast")
        return self.tracer.emit(ptr(to), lambda result, line: CastPointer(result, operand, location=line))

    def _moved(self, index: Value | int | float, scale_bytes: int) -> Value:
        base = self.tracer.operand(self)
        if not isinstance(base.type, Pointer):
            self.tracer.fail(f"only pointers move, not {self.type}")
        n = self.tracer.check_scalar(index, i64, "the index of a pointer")
        return self.tracer.emit(base.type, lambda result, line: Offset(result, base, n, scale_bytes, location=line))


def binary(tracer: Tracer, op: BinaryOp, a: Value | int | float, b: Value | int | float) -> Value:
    """Traces a op b; at least one of them is a value."""
    x, y = _same_type(tracer, op.value, a, b)
    element = element_of(x.type)
    if element is None:
        tracer.fail(f"{op.value} is not for {x.type}")
    if element.is_storage_float:
        tracer.fail(f"{element} is a storage format: convert it with .to(f32) before computing")
    if element.kind is Kind.BOOL and op not in _BITWISE:
        tracer.fail(f"{op.value} is not for truth values")
    if element.kind is Kind.FLOAT and (op in _INTEGER_ONLY or op in _BITWISE):
        tracer.fail(f"{op.value} is for integers, not {x.type}")
    if element.is_integer and op is BinaryOp.DIVIDE:
        tracer.fail(f"/ is for floats, not {x.type}: integers have //")
    if op in (BinaryOp.FLOOR_DIVIDE, BinaryOp.MODULO) and isinstance(x.type, Vector):
        tracer.fail(f"{op.value} is for scalars, not {x.type}: no CPU divides vectors of integers")
    if op in (BinaryOp.SHIFT_LEFT, BinaryOp.SHIFT_RIGHT) and isinstance(b, int) and not 0 <= b < element.bits:
        tracer.fail(f"a shift by {b} is out of the {element.bits} bits of {element}")
    return tracer.emit(x.type, lambda result, line: Binary(result, op, x, y, location=line))


def unary(tracer: Tracer, op: UnaryOp, a: Value) -> Value:
    """Traces op a."""
    x = tracer.operand(a)
    element = element_of(x.type)
    float_only = op in (UnaryOp.SQUARE_ROOT, UnaryOp.FLOOR, UnaryOp.ROUND_EVEN)
    if element is None or element.is_storage_float or (float_only and element.kind is not Kind.FLOAT):
        tracer.fail(f"{op.value} is not for {x.type}")
    if op in (UnaryOp.NEGATE, UnaryOp.ABSOLUTE) and element.kind not in (Kind.SIGNED, Kind.FLOAT):
        tracer.fail(f"{op.value} is for signed types, not {x.type}")
    if op is UnaryOp.INVERT and element.kind is Kind.FLOAT:
        tracer.fail(f"~ is for integers and truth values, not {x.type}")
    return tracer.emit(x.type, lambda result, line: Unary(result, op, x, location=line))


def compare(tracer: Tracer, op: CompareOp, a: Value, b: Value | int | float) -> Value:
    """Traces a comparison: i1, or a vector of i1. Comparisons with NaN are false, except `ne`."""
    x, y = _same_type(tracer, op.value, a, b)
    element = element_of(x.type)
    if element is None or element.is_storage_float or element.kind is Kind.BOOL:
        tracer.fail(f"{op.value} is not for {x.type}")
    return tracer.emit(with_element(x.type, i1), lambda result, line: Compare(result, op, x, y, location=line))


def _same_type(tracer: Tracer, what: str, a: Value | int | float, b: Value | int | float) -> tuple[Operand, Operand]:
    if not isinstance(a, Value):
        if not isinstance(b, Value):
            tracer.fail(f"{what} needs a traced value on one side")
        y = tracer.operand(b)
        return tracer.constant(a, y.type), y
    x = tracer.operand(a)
    if not isinstance(b, Value):
        if not isinstance(b, (int, float)):
            tracer.fail(f"{x.type} {what} {type(b).__name__}: the right side is neither a value nor a number")
        return x, tracer.constant(b, x.type)
    y = tracer.operand(b)
    if x.type != y.type:
        tracer.fail(f"{x.type} {what} {y.type}: the types differ; convert or splat one of them")
    return x, y


def _convert(value: Value, op: ConvertOp, to: Scalar | Vector) -> Value:
    operand = value.tracer.operand(value)
    return value.tracer.emit(to, lambda result, line: Convert(result, op, operand, location=line))


def _convert_numeric(value: Value, element: Scalar) -> Value:
    tracer = value.tracer
    source = element_of(value.type)
    if source is None or isinstance(value.type, (Pointer, KernelPointer)):
        tracer.fail(f"{value.type} is no number: pointers have .cast")
    if source == element:
        return value
    if element.kind is Kind.BOOL:
        tracer.fail("a number becomes a truth value by comparison: x.ne(0)")
    if source.kind is Kind.FLOAT and element.kind is not Kind.FLOAT:
        tracer.fail(f"{value.type} to {element} must say how to round: round_to or trunc_to")
    storage = source.is_storage_float or element.is_storage_float
    if storage and f32 not in (source, element):
        tracer.fail(f"{source} to {element} goes by way of f32: convert twice")
    return _convert(value, ConvertOp.NUMERIC, with_element(value.type, element))


def _convert_float_to_int(value: Value, element: Scalar, op: ConvertOp) -> Value:
    if element_of(value.type) != f32 or element.name != "i32":
        hint = " (convert f64 to f32 first)" if element_of(value.type) == f64 else ""
        value.tracer.fail(f"{op.value} makes i32 of f32, not {element} of {value.type}{hint}")
    return _convert(value, op, with_element(value.type, element))
