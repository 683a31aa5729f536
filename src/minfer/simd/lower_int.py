"""Arithmetic, comparisons, lane masks and table lookups as LLVM instructions."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.simd.ir import BinaryOp, CompareOp
from minfer.simd.targets import Architecture, Target
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


def first_lanes(writer: Writer, n: Ref, lanes: int) -> Ref:
    """The mask of the lanes below n (i64)."""
    few = writer.compare("icmp slt", n, lanes)
    count = writer.convert("trunc", writer.select(few, n, writer.constant(n, lanes)), "i32")
    return writer.compare("icmp slt", writer.constant_of("i32", lanes, range(lanes)), writer.splat(count, lanes))


def lookup16(writer: Writer, target: Target, table: Sequence[int], indices: Ref) -> Ref:
    """table[indices[i]] for each lane: one byte shuffle a register where the target has one."""
    if target.is_plain_x86:
        found = Ref("zeroinitializer", "i8", indices.lanes)
        for index, entry in enumerate(table):
            found = writer.select(writer.compare("icmp eq", indices, index), writer.constant(found, entry), found)
        return found
    if target.architecture is Architecture.AARCH64:
        names = {16: "llvm.aarch64.neon.tbl1.v16i8"}
    else:
        names = {
            64: "llvm.x86.avx512.pshuf.b.512",
            32: "llvm.x86.avx2.pshuf.b",
            16: "llvm.x86.ssse3.pshuf.b.128",
        }
    widths = [width for width in names if width <= target.vector_bytes]

    def piece(operands: Sequence[Ref]) -> Ref:
        width = operands[0].lanes
        # x86 shuffles each 16 bytes on their own, so the table is repeated.
        entries = writer.constant_of("i8", width, list(table) * (width // 16))
        return writer.call(names[width], "i8", width, [entries, operands[0]])

    return writer.in_pieces([indices], widths, piece)


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
