"""Panels: how weights lie in memory for the matmul kernels.

A weight [n_rows, n_columns] becomes panels of 16 rows (the last one filled up with zeros), one after the other. A
panel runs along the columns in *units*: 32 columns for the classic formats, 256 for the K family. Within a unit,
scales come first, then the integers in `dot4` order: bytes [group of 4 columns][16 rows][4 columns], so that one
vector of 64 bytes times a broadcast group of four activations gives 16 partial dot products, one a row.

A unit takes as many bytes as the 16 blocks in the file, or a few more; nothing is rounded. For 32 columns at a time,
the format *emits* registers with

    value[row, k] = scale[row, group of k] * (u[row, k] - zero) + offset[row, group of k]

where u are unsigned bytes and a group is all 32 columns or 16 of them. Low nibbles hold columns 0-15, high nibbles
16-31.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minfer.quants import GGMLType, block_geometry, unpack
from minfer.simd import Kernel, Value, f16, f32, i8, i32, u8, vec

PANEL_ROWS = 16
BLOCK = 32
"""Columns that are computed at a time: one scale of the activations."""
GROUPS_OF_FOUR = BLOCK // 4
VECTOR_BYTES = PANEL_ROWS * 4
U8X64 = vec(u8, VECTOR_BYTES)
I32X16 = vec(i32, PANEL_ROWS)
F32X16 = vec(f32, PANEL_ROWS)


@dataclass(frozen=True)
class Registers:
    """32 columns of a panel in registers."""

    quants: tuple[Value, ...]
    """8 vectors u8x64 in dot4 order"""
    scales: tuple[Value, ...]
    """f32x16 for each group"""
    offsets: tuple[Value, ...]
    """f32x16 for each group; empty for formats without"""


EmitHeader = Callable[[Kernel, Value], tuple[Value, ...]]
EmitBlock = Callable[[Kernel, Value, tuple[Value, ...]], Registers]


@dataclass(frozen=True)
class PanelFormat:
    """One layout of a unit: a header, then `n_blocks` equal parts of 32 columns each."""

    name: str
    n_blocks: int
    header_bytes: int
    block_bytes: int
    n_groups: int
    zero: int
    """what is subtracted from u: 0 or a power of two up to 128"""
    u_max: int
    has_offset: bool
    emit_header: EmitHeader
    """(k, unit address) -> values that all its blocks need"""
    emit_block: EmitBlock
    """(k, block address, header) -> registers"""

    @property
    def unit_columns(self) -> int:
        return self.n_blocks * BLOCK

    @property
    def unit_bytes(self) -> int:
        return self.header_bytes + self.n_blocks * self.block_bytes

    def panel_bytes(self, n_columns: int) -> int:
        return n_columns // self.unit_columns * self.unit_bytes


def no_header(k: Kernel, unit: Value) -> tuple[Value, ...]:
    return ()


def load_bytes(k: Kernel, address: Value, offset: int, n: int = VECTOR_BYTES) -> Value:
    return k.load(address.offset_bytes(offset), n)


def load_f16(k: Kernel, address: Value, offset: int) -> Value:
    """16 half floats, widened to f32."""
    return k.load(address.offset_bytes(offset).cast(f16), PANEL_ROWS, align=2).to(f32)


def load_u8_as_f32(k: Kernel, address: Value, offset: int) -> Value:
    return load_bytes(k, address, offset, PANEL_ROWS).to(i32).to(f32)


def load_i8_as_f32(k: Kernel, address: Value, offset: int) -> Value:
    return k.load(address.offset_bytes(offset).cast(i8), PANEL_ROWS).to(i32).to(f32)


def nibbles(k: Kernel, block: Value, offset: int) -> tuple[Value, ...]:
    """256 bytes of nibbles as 8 vectors: the low ones are the first four groups of columns."""
    packed = [load_bytes(k, block, offset + VECTOR_BYTES * i) for i in range(4)]
    return (*(q & 15 for q in packed), *(q >> 4 for q in packed))


def with_bit(low: Sequence[Value], high: Value, shift_to: int) -> tuple[Value, ...]:
    """Adds bit g of each byte of `high` as bit `shift_to` of vector g."""
    fields = []
    for g, q in enumerate(low):
        moved = high << (shift_to - g) if g < shift_to else high >> (g - shift_to) if g > shift_to else high
        fields.append(q | (moved & (1 << shift_to)))
    return tuple(fields)


def two_bits(packed: Sequence[Value], shift_to: int) -> tuple[Value, ...]:
    """2-bit fields of two vectors, four groups each, moved to bit `shift_to`."""
    mask = 3 << shift_to
    fields = []
    for vector in packed:
        for g in range(4):
            shift = 2 * g - shift_to
            moved = vector if shift == 0 else vector >> shift if shift > 0 else vector << -shift
            fields.append(moved & mask)
    return tuple(fields)


def _scale_in_front(n_extra: int, bits: int) -> EmitBlock:
    """d, then (n_extra) the offset m, then the integers."""

    def emit(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
        scale = load_f16(k, block, 0)
        offsets = (load_f16(k, block, 32),) if n_extra else ()
        start = 32 * (1 + n_extra)
        if bits == 8:
            quants = tuple(load_bytes(k, block, start + VECTOR_BYTES * g) for g in range(GROUPS_OF_FOUR))
        elif bits == 5:
            quants = with_bit(nibbles(k, block, start + VECTOR_BYTES), load_bytes(k, block, start), 4)
        else:
            quants = nibbles(k, block, start)
        return Registers(quants, (scale,), offsets)

    return emit


def _classic(name: str, *, bits: int, zero: int, has_offset: bool) -> PanelFormat:
    integers = {4: 256, 5: 256 + 64, 8: 512}[bits]
    return PanelFormat(
        name=name,
        n_blocks=1,
        header_bytes=0,
        block_bytes=32 * (1 + has_offset) + integers,
        n_groups=1,
        zero=zero,
        u_max=(1 << bits) - 1,
        has_offset=has_offset,
        emit_header=no_header,
        emit_block=_scale_in_front(int(has_offset), bits),
    )


Q8_0 = _classic("q8_0", bits=8, zero=128, has_offset=False)
"""16 x f16 d; 8 x 64 bytes of q + 128. 34 bytes a block of 32, as in the file."""
Q4_0 = _classic("q4_0", bits=4, zero=8, has_offset=False)
"""16 x f16 d; 256 bytes of nibbles. 18 bytes a block of 32, as in the file."""
Q4_1 = _classic("q4_1", bits=4, zero=0, has_offset=True)
"""16 x f16 d; 16 x f16 m; 256 bytes of nibbles. 20 bytes a block of 32, as in the file."""
Q5_0 = _classic("q5_0", bits=5, zero=16, has_offset=False)
"""16 x f16 d; 64 bytes, bit g of each for group g; 256 bytes of nibbles. 22 bytes a block of 32, as in the file."""
Q5_1 = _classic("q5_1", bits=5, zero=0, has_offset=True)
"""16 x f16 d; 16 x f16 m; the fifth bits; the nibbles. 24 bytes a block of 32, as in the file."""


def _halves_header(k: Kernel, unit: Value) -> tuple[Value, ...]:
    return load_f16(k, unit, 0), -load_f16(k, unit, 32)


def _one_half_header(k: Kernel, unit: Value) -> tuple[Value, ...]:
    return (load_f16(k, unit, 0),)


def _scaled_minimum(has_fifth_bit: bool) -> EmitBlock:
    def emit(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
        d, negative_minimum = header
        scale = d * load_u8_as_f32(k, block, 0)
        offset = negative_minimum * load_u8_as_f32(k, block, 16)
        if has_fifth_bit:
            quants = with_bit(nibbles(k, block, 32 + VECTOR_BYTES), load_bytes(k, block, 32), 4)
        else:
            quants = nibbles(k, block, 32)
        return Registers(quants, (scale,), (offset,))

    return emit


def _q2_k_block(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
    d, negative_minimum = header
    packed = [load_bytes(k, block, 16 * group, PANEL_ROWS) for group in range(2)]
    scales = tuple(d * (each & 15).to(i32).to(f32) for each in packed)
    offsets = tuple(negative_minimum * (each >> 4).to(i32).to(f32) for each in packed)
    quants = two_bits([load_bytes(k, block, 32), load_bytes(k, block, 32 + VECTOR_BYTES)], shift_to=0)
    return Registers(quants, scales, offsets)


def _q3_k_block(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
    (d,) = header
    scales = tuple(d * load_i8_as_f32(k, block, 16 * group) for group in range(2))
    low = two_bits([load_bytes(k, block, 96), load_bytes(k, block, 96 + VECTOR_BYTES)], shift_to=0)
    return Registers(with_bit(low, load_bytes(k, block, 32), 2), scales, ())


def _q6_k_block(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
    (d,) = header
    scales = tuple(d * load_i8_as_f32(k, block, 16 * group) for group in range(2))
    high = two_bits([load_bytes(k, block, 32), load_bytes(k, block, 32 + VECTOR_BYTES)], shift_to=4)
    low = nibbles(k, block, 32 + 2 * VECTOR_BYTES)
    return Registers(tuple(a | b for a, b in zip(low, high, strict=True)), scales, ())


Q2_K = PanelFormat("q2_k", 8, 64, 32 + 128, 2, 0, 3, True, _halves_header, _q2_k_block)
"""16 x f16 d; 16 x f16 dmin; then for 32 columns each: 2 x 16 bytes with a scale (bits 3-0) and a minimum (bits 7-4),
128 bytes of two bits (four groups a vector). As many bytes as in the file."""
Q3_K = PanelFormat("q3_k", 8, 32, 32 + 64 + 128, 2, 4, 7, False, _one_half_header, _q3_k_block)
"""16 x f16 d; then for 32 columns each: 2 x 16 x i8 scale, 64 bytes with bit 2 (bit g of each for group g), 128 bytes
with bits 0 and 1 (four groups a vector). 3.5625 bits a value; the file has 3.4375, with scales of 6 bits."""
Q4_K = PanelFormat("q4_k", 8, 64, 32 + 256, 1, 0, 15, True, _halves_header, _scaled_minimum(False))
"""16 x f16 d; 16 x f16 dmin; then for 32 columns each: 16 x u8 scale, 16 x u8 minimum, 256 bytes of nibbles.
4.625 bits a value; the file has 4.5, with scales of 6 bits."""
Q5_K = PanelFormat("q5_k", 8, 64, 32 + 64 + 256, 1, 0, 31, True, _halves_header, _scaled_minimum(True))
"""As Q4_K, with the fifth bits before the nibbles. 5.625 bits a value; the file has 5.5."""
Q6_K = PanelFormat("q6_k", 8, 32, 32 + 128 + 256, 2, 32, 63, False, _one_half_header, _q6_k_block)
"""16 x f16 d; then for 32 columns each: 2 x 16 x i8 scale, 128 bytes with bits 4 and 5 (four groups a vector), 256
bytes of nibbles. As many bytes as in the file."""


def _levels(ggml_type: GGMLType) -> tuple[int, ...]:
    """What the 16 codes of a non-linear 4-bit type stand for: the integers of a block that has every code."""
    geometry = block_geometry(ggml_type)
    block = np.zeros((1, geometry.n_bytes), np.uint8)
    block[0, -16:] = np.arange(16)  # in the low nibbles, which are the first 16 columns
    return tuple(int(level) for level in unpack(ggml_type, block, geometry.n_values).quants[0, 0, :16])


def _look_up(k: Kernel, codes: Sequence[Value], levels: Sequence[int], zero: int) -> tuple[Value, ...]:
    """The level of each code, as level + zero in an unsigned byte."""
    table = np.array([level + zero for level in levels], np.uint8).view(np.int8)
    return tuple(k.lookup16([int(entry) for entry in table], code).bitcast(U8X64) for code in codes)


def _iq4_nl_block(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
    return Registers(_look_up(k, nibbles(k, block, 32), _IQ4_LEVELS, 128), (load_f16(k, block, 0),), ())


def _iq4_xs_block(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
    (d,) = header
    return Registers(_look_up(k, nibbles(k, block, 16), _IQ4_LEVELS, 128), (d * load_i8_as_f32(k, block, 0),), ())


def _mxfp4_block(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
    e = load_bytes(k, block, 0, PANEL_ROWS).to(i32)
    # 2^(e - 128) as the bits of a float; the two smallest are subnormal.
    bits = k.select(e > 1, (e - 1) << 23, (e + 1) << 21)
    return Registers(_look_up(k, nibbles(k, block, 16), _MXFP4_LEVELS, 16), (bits.bitcast(F32X16),), ())


_IQ4_LEVELS = _levels(GGMLType.IQ4_NL)
_MXFP4_LEVELS = _levels(GGMLType.MXFP4)

IQ4_NL = PanelFormat("iq4_nl", 1, 0, 32 + 256, 1, 128, 255, False, no_header, _iq4_nl_block)
"""16 x f16 d; 256 bytes of nibbles, which are codes for levels. 18 bytes a block of 32, as in the file."""
IQ4_XS = PanelFormat("iq4_xs", 8, 32, 16 + 256, 1, 128, 255, False, _one_half_header, _iq4_xs_block)
"""16 x f16 d; then for 32 columns each: 16 x i8 scale, 256 bytes of nibbles. 4.3125 bits a value; the file has 4.25,
with scales of 6 bits."""
MXFP4 = PanelFormat("mxfp4", 1, 0, 16 + 256, 1, 16, 28, False, no_header, _mxfp4_block)
"""16 x u8 exponent e, for a scale of 2^(e - 128); 256 bytes of nibbles. 17 bytes a block of 32, as in the file."""


def _wide(n_groups: int) -> PanelFormat:
    def emit(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
        scales = tuple(k.load(block.offset_bytes(64 * i).cast(f32), PANEL_ROWS) for i in range(n_groups))
        quants = tuple(load_bytes(k, block, 64 * n_groups + VECTOR_BYTES * g) for g in range(GROUPS_OF_FOUR))
        return Registers(quants, scales, ())

    return PanelFormat(f"wide_{n_groups}", 1, 0, 64 * n_groups + 512, n_groups, 128, 255, False, no_header, emit)


WIDE = {n_groups: _wide(n_groups) for n_groups in (1, 2)}
"""The 8-bit panel that every format of integers without offsets fits into without loss: f32 scales for each group,
then q + 128."""
