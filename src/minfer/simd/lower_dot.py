"""`dot4` as LLVM instructions: each way is exact, so every target gives the same bits.

u is unsigned and s signed, both bytes; acc[i] gains the sum of four products.
"""

from __future__ import annotations

from collections.abc import Sequence

from minfer.simd import llvm
from minfer.simd.targets import Dot4Lowering, Target
from minfer.simd.writer import Ref, Writer

# Up to here, the sum of two products fits into the 16 bits of vpmaddubsw, and u is non-negative as a signed byte.
_SMALL_U_MAX = 127


def lower_dot4(writer: Writer, target: Target, accumulator: Ref, u: Ref, s: Ref, u_max: int) -> Ref:
    """accumulator + dot4(u, s) for any number of lanes."""
    if target.dot4 is Dot4Lowering.PLAIN:
        return _plain(writer, accumulator, u, s)

    def piece(operands: Sequence[Ref]) -> Ref:
        a, x, y = operands
        match target.dot4:
            case Dot4Lowering.VNNI_512 | Dot4Lowering.VNNI_256:
                return _vpdpbusd(writer, a, x, y)
            case Dot4Lowering.MADD_512 | Dot4Lowering.MADD_256:
                return _maddubs(writer, a, x, y, u_max)
            case Dot4Lowering.SDOT:
                return _sdot(writer, a, x, y, u_max)
            case _:
                return _arm(writer, "usdot", a, x, y)

    widths = [lanes for lanes in (16, 8, 4) if 4 * lanes <= target.vector_bytes]
    return writer.in_pieces([accumulator, u, s], widths, piece)


def _vpdpbusd(writer: Writer, accumulator: Ref, u: Ref, s: Ref) -> Ref:
    lanes = accumulator.lanes
    if llvm.llvm_major() < 22:
        # Before LLVM 22 the intrinsic takes its bytes packed into i32.
        u, s = writer.bitcast(u, "i32", lanes), writer.bitcast(s, "i32", lanes)
    return writer.call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", "i32", lanes, [accumulator, u, s])


def _maddubs(writer: Writer, accumulator: Ref, u: Ref, s: Ref, u_max: int) -> Ref:
    if u_max <= _SMALL_U_MAX:
        return _madd_step(writer, accumulator, u, s, 1)
    # The sum of two products of 255 would saturate: the high bit of u goes on its own, and counts 128.
    low = writer.binary("and", u, 0x7F)
    high = writer.binary("lshr", u, 7)
    return _madd_step(writer, _madd_step(writer, accumulator, low, s, 1), high, s, 128)


def _madd_step(writer: Writer, accumulator: Ref, u: Ref, s: Ref, weight: int) -> Ref:
    lanes = accumulator.lanes
    maddubs, maddwd = {
        16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
        8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
        4: ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    }[lanes]
    pairs = writer.call(maddubs, "i16", 2 * lanes, [u, s])
    sums = writer.call(maddwd, "i32", lanes, [pairs, writer.constant(pairs, weight)])
    return writer.binary("add", accumulator, sums)


def _sdot(writer: Writer, accumulator: Ref, u: Ref, s: Ref, u_max: int) -> Ref:
    if u_max <= _SMALL_U_MAX:
        return _arm(writer, "sdot", accumulator, u, s)
    # u - 128 is a signed byte; 128 times the sum of s makes up for it.
    shifted = writer.binary("xor", u, -128)
    zero = Ref("zeroinitializer", "i32", accumulator.lanes)
    s_sum = _arm(writer, "sdot", zero, writer.constant(s, 1), s)
    correction = writer.binary("shl", s_sum, 7)
    return writer.binary("add", _arm(writer, "sdot", accumulator, shifted, s), correction)


def _arm(writer: Writer, name: str, accumulator: Ref, u: Ref, s: Ref) -> Ref:
    return writer.call(f"llvm.aarch64.neon.{name}.v4i32.v16i8", "i32", 4, [accumulator, u, s])


def _plain(writer: Writer, accumulator: Ref, u: Ref, s: Ref) -> Ref:
    """A product of a u8 and an i8 fits into 16 bits; the four of a lane are added in 32."""
    products = writer.binary("mul", writer.convert("zext", u, "i16"), writer.convert("sext", s, "i16"))
    total = accumulator
    for j in range(4):
        lane = writer.shuffle(products, None, range(j, products.lanes, 4))
        total = writer.binary("add", total, writer.convert("sext", lane, "i32"))
    return total
