"""Masks of lanes and table lookups as LLVM instructions."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.simd.targets import Architecture, Target
from minfer.simd.writer import Ref, Writer


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
