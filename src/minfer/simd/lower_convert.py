"""Conversions as LLVM instructions.

Where a target lacks an instruction (SSE2 has none for f16), a sequence that gives the same bits stands in: LLVM would
call a function of the compiler's run-time library, which need not be there.
"""

from __future__ import annotations

from collections.abc import Sequence

from minfer.simd.ir import ConvertOp
from minfer.simd.targets import Architecture, Target
from minfer.simd.types import Kind, Scalar, Type, element_of, f16
from minfer.simd.writer import Ref, Writer, llvm_element, llvm_lanes

_INT_MIN = -(2**31)


def convert(writer: Writer, target: Target, op: ConvertOp, source: Type, to: Type, a: Ref) -> Ref:
    """a of type `source` as a `to`."""
    x, y = element_of(source), element_of(to)
    assert x is not None
    assert y is not None
    match op:
        case ConvertOp.BITCAST:
            return writer.bitcast(a, llvm_element(to), llvm_lanes(to))
        case ConvertOp.SATURATE:
            return _saturated(writer, x, y, a)
        case ConvertOp.ROUND | ConvertOp.TRUNCATE:
            return _float_to_i32(writer, target, op, a)
        case ConvertOp.NUMERIC:
            return _numeric(writer, target, x, y, a)


def _numeric(writer: Writer, target: Target, x: Scalar, y: Scalar, a: Ref) -> Ref:
    if x.is_storage_float:
        return _half_to_f32(writer, target, a) if x == f16 else _bf16_to_f32(writer, a)
    if y.is_storage_float:
        return _f32_to_half(writer, target, a) if y == f16 else _f32_to_bf16(writer, a)
    to = llvm_element(y)
    if x.kind is Kind.FLOAT:
        return writer.convert("fpext" if y.bits > x.bits else "fptrunc", a, to)
    if y.kind is Kind.FLOAT:
        return writer.convert("sitofp" if x.kind is Kind.SIGNED else "uitofp", a, to)
    if y.bits == x.bits:
        return a
    if y.bits < x.bits:
        return writer.convert("trunc", a, to)
    return writer.convert("sext" if x.kind is Kind.SIGNED else "zext", a, to)


def _saturated(writer: Writer, x: Scalar, y: Scalar, a: Ref) -> Ref:
    letter = "s" if x.kind is Kind.SIGNED else "u"
    if y.smallest > x.smallest:
        low = writer.constant(a, y.smallest)
        a = writer.select(writer.compare(f"icmp {letter}gt", a, low), a, low)
    high = writer.constant(a, y.largest)
    a = writer.select(writer.compare(f"icmp {letter}lt", a, high), a, high)
    return writer.convert("trunc", a, llvm_element(y))


def _float_to_i32(writer: Writer, target: Target, op: ConvertOp, a: Ref) -> Ref:
    """x86's instruction gives -2**31 for what does not fit; elsewhere a selection does."""
    if target.architecture is Architecture.X86_64:
        return _x86_float_to_i32(writer, target, op, a)
    whole = writer.call(f"llvm.roundeven.{a.mangled}", "float", a.lanes, [a]) if op is ConvertOp.ROUND else a
    integer = Ref("", "i32", a.lanes)
    converted = writer.call(f"llvm.fptosi.sat.{integer.mangled}.{a.mangled}", "i32", a.lanes, [whole])
    magnitude = writer.call(f"llvm.fabs.{a.mangled}", "float", a.lanes, [a])
    fits = writer.compare("fcmp olt", magnitude, 2.0**31)
    return writer.select(fits, converted, writer.constant(integer, _INT_MIN))


def _x86_float_to_i32(writer: Writer, target: Target, op: ConvertOp, a: Ref) -> Ref:
    t = "t" if op is ConvertOp.TRUNCATE else ""
    names = {
        16: f"llvm.x86.avx512.mask.cvt{t}ps2dq.512",
        8: f"llvm.x86.avx.cvt{t}.ps2dq.256",
        4: f"llvm.x86.sse2.cvt{t}ps2dq",
    }
    widths = [lanes for lanes in names if 4 * lanes <= target.vector_bytes]

    def piece(operands: Sequence[Ref]) -> Ref:
        lanes = operands[0].lanes
        arguments = list(operands)
        if lanes == 16:
            # All lanes, and the rounding mode of the control register: to nearest even.
            arguments += [Ref("zeroinitializer", "i32", 16), Ref("-1", "i16", 0), Ref("4", "i32", 0)]
        return writer.call(names[lanes], "i32", lanes, arguments)

    if a.lanes:
        return writer.in_pieces([a], widths, piece)
    four = writer.new("float", 4, f"insertelement <4 x float> zeroinitializer, {a.typed}, i64 0")
    return writer.new("i32", 0, f"extractelement {piece([four]).typed}, i64 0")


def _half_to_f32(writer: Writer, target: Target, a: Ref) -> Ref:
    if not target.is_plain_x86:
        return writer.convert("fpext", writer.bitcast(a, "half", a.lanes), "float")
    wide = writer.convert("zext", a, "i32")
    sign = writer.binary("shl", writer.binary("and", wide, 0x8000), 16)
    magnitude = writer.binary("shl", writer.binary("and", wide, 0x7FFF), 13)
    # As an f32 these bits are the number times 2**-112, subnormal numbers included; the product is exact.
    small = writer.bitcast(magnitude, "float", a.lanes)
    finite = writer.bitcast(writer.binary("fmul", small, 2.0**112), "i32", a.lanes)
    is_finite = writer.compare("icmp ult", magnitude, 0x7C00 << 13)
    bits = writer.select(is_finite, finite, writer.binary("or", magnitude, 0x7F800000))
    return writer.bitcast(writer.binary("or", bits, sign), "float", a.lanes)


def _f32_to_half(writer: Writer, target: Target, a: Ref) -> Ref:
    if not target.is_plain_x86:
        return writer.bitcast(writer.convert("fptrunc", a, "half"), "i16", a.lanes)
    bits = writer.bitcast(a, "i32", a.lanes)
    sign = writer.binary("lshr", writer.binary("and", bits, _INT_MIN), 16)
    magnitude = writer.binary("and", bits, 0x7FFFFFFF)
    # Normal results: rebias the exponent and round at bit 13; a carry into the exponent is right, up to infinity.
    odd = writer.binary("and", writer.binary("lshr", magnitude, 13), 1)
    rebiased = writer.binary("add", writer.binary("sub", magnitude, 112 << 23), 0xFFF)
    normal = writer.binary("lshr", writer.binary("add", rebiased, odd), 13)
    # Subnormal results: adding 0.5 makes the FPU round at the last bit of an f16, 2**-24.
    shifted = writer.binary("fadd", writer.bitcast(magnitude, "float", a.lanes), 0.5)
    subnormal = writer.binary("sub", writer.bitcast(shifted, "i32", a.lanes), 0x3F000000)
    is_nan = writer.compare("icmp ugt", magnitude, 0x7F800000)
    huge = writer.select(is_nan, writer.constant(bits, 0x7E00), writer.constant(bits, 0x7C00))
    result = writer.select(writer.compare("icmp ult", magnitude, 113 << 23), subnormal, normal)
    result = writer.select(writer.compare("icmp ult", magnitude, 143 << 23), result, huge)
    return writer.convert("trunc", writer.binary("or", result, sign), "i16")


def _bf16_to_f32(writer: Writer, a: Ref) -> Ref:
    return writer.bitcast(writer.binary("shl", writer.convert("zext", a, "i32"), 16), "float", a.lanes)


def _f32_to_bf16(writer: Writer, a: Ref) -> Ref:
    """By integers on every target: x86's own instruction would flush subnormal numbers to zero."""
    bits = writer.bitcast(a, "i32", a.lanes)
    odd = writer.binary("and", writer.binary("lshr", bits, 16), 1)
    rounded = writer.binary("lshr", writer.binary("add", writer.binary("add", bits, 0x7FFF), odd), 16)
    quiet = writer.binary("or", writer.binary("lshr", bits, 16), 0x40)
    is_nan = writer.compare("fcmp uno", a, a)
    return writer.convert("trunc", writer.select(is_nan, quiet, rounded), "i16")
