"""Arithmetic and comparisons as LLVM instructions.

Where a target lacks an instruction (SSE2 has neither fma nor rounding), a sequence that gives the same bits stands in:
LLVM would call the C library, whose functions need not be there and need not be exact.
"""

from __future__ import annotations

from minfer.simd.ir import BinaryOp, CompareOp, UnaryOp
from minfer.simd.targets import Target
from minfer.simd.types import Kind, Type, element_of
from minfer.simd.writer import Ref, Writer

_FLOAT = {
    BinaryOp.ADD: "fadd",
    BinaryOp.SUBTRACT: "fsub",
    BinaryOp.MULTIPLY: "fmul",
    BinaryOp.DIVIDE: "fdiv",
}
_INTEGER = {
    BinaryOp.ADD: "add",
    BinaryOp.SUBTRACT: "sub",
    BinaryOp.MULTIPLY: "mul",
    BinaryOp.AND: "and",
    BinaryOp.OR: "or",
    BinaryOp.XOR: "xor",
    BinaryOp.SHIFT_LEFT: "shl",
}
_FLOAT_PREDICATES = {
    CompareOp.LESS: "olt",
    CompareOp.LESS_EQUAL: "ole",
    CompareOp.GREATER: "ogt",
    CompareOp.GREATER_EQUAL: "oge",
    CompareOp.EQUAL: "oeq",
    CompareOp.NOT_EQUAL: "une",
}
_INTEGER_PREDICATES = {
    CompareOp.LESS: "lt",
    CompareOp.LESS_EQUAL: "le",
    CompareOp.GREATER: "gt",
    CompareOp.GREATER_EQUAL: "ge",
}


def binary(writer: Writer, op: BinaryOp, of: Type, a: Ref, b: Ref) -> Ref:
    """a op b for operands of type `of`."""
    element = element_of(of)
    assert element is not None
    if op is BinaryOp.MINIMUM:
        return writer.select(compare(writer, CompareOp.LESS, of, a, b), a, b)
    if op is BinaryOp.MAXIMUM:
        return writer.select(compare(writer, CompareOp.GREATER, of, a, b), a, b)
    if element.kind is Kind.FLOAT:
        return writer.binary(_FLOAT[op], a, b)
    signed = element.kind is Kind.SIGNED
    if op is BinaryOp.SHIFT_RIGHT:
        return writer.binary("ashr" if signed else "lshr", a, b)
    if op is BinaryOp.FLOOR_DIVIDE:
        return _floor_divide(writer, a, b) if signed else writer.binary("udiv", a, b)
    if op is BinaryOp.MODULO:
        return _floor_modulo(writer, a, b) if signed else writer.binary("urem", a, b)
    return writer.binary(_INTEGER[op], a, b)


def compare(writer: Writer, op: CompareOp, of: Type, a: Ref, b: Ref) -> Ref:
    """Whether a op b, lane by lane."""
    element = element_of(of)
    assert element is not None
    if element.kind is Kind.FLOAT:
        return writer.compare(f"fcmp {_FLOAT_PREDICATES[op]}", a, b)
    if op in (CompareOp.EQUAL, CompareOp.NOT_EQUAL):
        return writer.compare(f"icmp {op.value}", a, b)
    return writer.compare(f"icmp {'s' if element.kind is Kind.SIGNED else 'u'}{_INTEGER_PREDICATES[op]}", a, b)


def unary(writer: Writer, target: Target, op: UnaryOp, of: Type, a: Ref) -> Ref:
    """op a for an operand of type `of`."""
    element = element_of(of)
    assert element is not None
    is_float = element.kind is Kind.FLOAT
    match op:
        case UnaryOp.NEGATE if is_float:
            return writer.new(a.element, a.lanes, f"fneg {a.typed}")
        case UnaryOp.NEGATE:
            return writer.binary("sub", writer.constant(a, 0), a)
        case UnaryOp.INVERT:
            return writer.binary("xor", a, 1 if element.kind is Kind.BOOL else -1)
        case UnaryOp.ABSOLUTE if is_float:
            return writer.call(f"llvm.fabs.{a.mangled}", a.element, a.lanes, [a])
        case UnaryOp.ABSOLUTE:
            # false: the smallest integer stays as it is, rather than being undefined.
            return writer.call(f"llvm.abs.{a.mangled}", a.element, a.lanes, [a, Ref("false", "i1", 0)])
        case UnaryOp.SQUARE_ROOT:
            return writer.call(f"llvm.sqrt.{a.mangled}", a.element, a.lanes, [a])
        case UnaryOp.FLOOR if not target.is_plain_x86:
            return writer.call(f"llvm.floor.{a.mangled}", a.element, a.lanes, [a])
        case UnaryOp.ROUND_EVEN if not target.is_plain_x86:
            return writer.call(f"llvm.roundeven.{a.mangled}", a.element, a.lanes, [a])
        case UnaryOp.FLOOR | UnaryOp.ROUND_EVEN:
            return _rounded_by_addition(writer, op, a)


def fma(writer: Writer, target: Target, a: Ref, b: Ref, c: Ref) -> Ref:
    """a * b + c in f32, rounded once."""
    if target.is_plain_x86:
        return _fma_by_doubles(writer, a, b, c)
    return writer.call(f"llvm.fma.{a.mangled}", a.element, a.lanes, [a, b, c])


def _floor_divide(writer: Writer, a: Ref, b: Ref) -> Ref:
    """Division that rounds down: one less than C's where the remainder is not zero and of the other sign than b."""
    quotient = writer.binary("sdiv", a, b)
    wrong = _needs_correction(writer, writer.binary("srem", a, b), b)
    return writer.binary("sub", quotient, writer.convert("zext", wrong, a.element))


def _floor_modulo(writer: Writer, a: Ref, b: Ref) -> Ref:
    remainder = writer.binary("srem", a, b)
    wrong = _needs_correction(writer, remainder, b)
    return writer.select(wrong, writer.binary("add", remainder, b), remainder)


def _needs_correction(writer: Writer, remainder: Ref, b: Ref) -> Ref:
    other_sign = writer.compare("icmp slt", writer.binary("xor", remainder, b), 0)
    return writer.binary("and", writer.compare("icmp ne", remainder, 0), other_sign)


def _fma_by_doubles(writer: Writer, a: Ref, b: Ref, c: Ref) -> Ref:
    """The product of two f32 is exact in f64. The sum is rounded to odd, so that rounding again to f32 is right.

    Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd"
    (2008); the error of the sum is Knuth's two-sum.
    """
    x, y, z = (writer.convert("fpext", each, "double") for each in (a, b, c))
    product = writer.binary("fmul", x, y)
    total = writer.binary("fadd", product, z)
    z_part = writer.binary("fsub", total, product)
    product_error = writer.binary("fsub", product, writer.binary("fsub", total, z_part))
    error = writer.binary("fadd", product_error, writer.binary("fsub", z, z_part))
    bits = writer.bitcast(total, "i64", a.lanes)
    # With an infinity or NaN the error is NaN, and the total stays.
    inexact = writer.compare("fcmp one", error, 0.0)
    even = writer.compare("icmp eq", writer.binary("and", bits, 1), 0)
    away = writer.binary("xor", writer.compare("fcmp ogt", error, 0.0), writer.compare("fcmp olt", total, 0.0))
    step = writer.select(away, writer.constant(bits, 1), writer.constant(bits, -1))
    odd = writer.binary("add", bits, step)
    chosen = writer.select(writer.binary("and", inexact, even), odd, bits)
    return writer.convert("fptrunc", writer.bitcast(chosen, "double", a.lanes), "float")


def _rounded_by_addition(writer: Writer, op: UnaryOp, a: Ref) -> Ref:
    """Adding 2**23 (2**52 for f64) leaves no bits for a fraction, and subtracting it again is exact."""
    magic = 2.0**23 if a.element == "float" else 2.0**52

    def with_sign_of_a(x: Ref) -> Ref:
        return writer.call(f"llvm.copysign.{a.mangled}", a.element, a.lanes, [x, a])

    signed_magic = with_sign_of_a(writer.constant(a, magic))
    rounded = with_sign_of_a(writer.binary("fsub", writer.binary("fadd", a, signed_magic), signed_magic))
    if op is UnaryOp.FLOOR:
        too_high = writer.compare("fcmp ogt", rounded, a)
        one = writer.select(too_high, writer.constant(a, 1.0), writer.constant(a, 0.0))
        rounded = writer.binary("fsub", rounded, one)
    magnitude = writer.call(f"llvm.fabs.{a.mangled}", a.element, a.lanes, [a])
    return writer.select(writer.compare("fcmp olt", magnitude, magic), rounded, a)
