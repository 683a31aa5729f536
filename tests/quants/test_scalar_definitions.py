"""Every block format once more, one value at a time, straight from its layout: `value(block, i)` is value i of a block.

These use plain Python numbers. In double precision no product of a finite scale and its integers is rounded,
so rounding the result once must give the float32 that the package computes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from minfer.quants import GGMLType, block_geometry, dequantise, unpack, unpackable_types
from minfer.quants.iq_grids import (
    iq1_s_grid,
    iq2_s_grid,
    iq2_xs_grid,
    iq2_xxs_grid,
    iq3_s_grid,
    iq3_xxs_grid,
)


def f16(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def f32(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<f", block, at)[0])


def u16(block: bytes, at: int) -> int:
    return int.from_bytes(block[at : at + 2], "little")


def u32(block: bytes, at: int) -> int:
    return int.from_bytes(block[at : at + 4], "little")


def i8(block: bytes, at: int) -> int:
    return (block[at] ^ 0x80) - 0x80


def nibble(block: bytes, at: int, high: bool) -> int:
    return block[at] >> 4 if high else block[at] & 15


def nibble_of_32(block: bytes, at: int, i: int) -> int:
    """Value i of 32 values that are stored as low nibbles, then high nibbles, of 16 bytes."""
    return nibble(block, at + i % 16, i >= 16)


def q4_0(block: bytes, i: int) -> float:
    return f16(block, 0) * (nibble_of_32(block, 2, i) - 8)


def q4_1(block: bytes, i: int) -> float:
    return f16(block, 0) * nibble_of_32(block, 4, i) + f16(block, 2)


def q5_0(block: bytes, i: int) -> float:
    fifth = u32(block, 2) >> i & 1
    return f16(block, 0) * (nibble_of_32(block, 6, i) + 16 * fifth - 16)


def q5_1(block: bytes, i: int) -> float:
    fifth = u32(block, 4) >> i & 1
    return f16(block, 0) * (nibble_of_32(block, 8, i) + 16 * fifth) + f16(block, 2)


def q8_0(block: bytes, i: int) -> float:
    return f16(block, 0) * i8(block, 2 + i)


def q8_1(block: bytes, i: int) -> float:
    return f16(block, 0) * i8(block, 4 + i)


def two_bits(block: bytes, at: int, i: int) -> int:
    """Value i of 256: two bits each, four values that are 32 apart in a byte, 128 values in 32 bytes."""
    half, rest = divmod(i, 128)
    quarter, lane = divmod(rest, 32)
    return block[at + 32 * half + lane] >> (2 * quarter) & 3


def q2_k(block: bytes, i: int) -> float:
    scale_and_min = block[i // 16]
    return f16(block, 80) * (scale_and_min & 15) * two_bits(block, 16, i) - f16(block, 82) * (scale_and_min >> 4)


def q3_k(block: bytes, i: int) -> float:
    group = i // 16
    low = nibble(block, 96 + group % 8, group >= 8)
    high = block[104 + group % 4] >> (2 * (group // 4)) & 3
    scale = (low | high << 4) - 32
    third = block[i % 32] >> (i // 32) & 1
    return f16(block, 108) * scale * (two_bits(block, 32, i) + 4 * third - 4)


def scale_and_min_of_k(block: bytes, at: int, group: int) -> tuple[int, int]:
    k = group % 4
    if group < 4:
        return block[at + k] & 63, block[at + 4 + k] & 63
    last = block[at + 8 + k]
    return last & 15 | block[at + k] >> 6 << 4, last >> 4 | block[at + 4 + k] >> 6 << 4


def four_bits_of_k(block: bytes, at: int, i: int) -> int:
    """Value i of 256: two values that are 32 apart in a byte, 64 values in 32 bytes."""
    return nibble(block, at + 32 * (i // 64) + i % 32, i % 64 >= 32)


def q4_k(block: bytes, i: int) -> float:
    scale, minimum = scale_and_min_of_k(block, 4, i // 32)
    return f16(block, 0) * scale * four_bits_of_k(block, 16, i) - f16(block, 2) * minimum


def q5_k(block: bytes, i: int) -> float:
    scale, minimum = scale_and_min_of_k(block, 4, i // 32)
    fifth = block[16 + i % 32] >> (i // 32) & 1
    return f16(block, 0) * scale * (four_bits_of_k(block, 48, i) + 16 * fifth) - f16(block, 2) * minimum


def q6_k(block: bytes, i: int) -> float:
    half, rest = divmod(i, 128)
    low = nibble(block, 64 * half + rest % 64, rest >= 64)
    return f16(block, 208) * i8(block, 192 + i // 16) * ((low | two_bits(block, 128, i) << 4) - 32)


def q8_k(block: bytes, i: int) -> float:
    return f32(block, 0) * i8(block, 4 + i)


def sign(bits: int, lane: int) -> int:
    return -1 if bits >> lane & 1 else 1


def sign_of_seven(bits: int, lane: int) -> int:
    """The eighth bit makes the number of ones even."""
    return sign(bits | (bits.bit_count() & 1) << 7, lane)


def iq2_xxs(block: bytes, i: int) -> float:
    group, rest = divmod(i, 32)
    at = 2 + 8 * group
    word = u32(block, at + 4)
    point = iq2_xxs_grid()[block[at + rest // 8]]
    signs = word >> (7 * (rest // 8)) & 127
    return f16(block, 0) * (0.5 + (word >> 28)) * 0.25 * int(point[i % 8]) * sign_of_seven(signs, i % 8)


def iq2_xs(block: bytes, i: int) -> float:
    entry = u16(block, 2 + 2 * (i // 8))
    scale = nibble(block, 66 + i // 32, i // 16 % 2 == 1)
    point = iq2_xs_grid()[entry & 511]
    return f16(block, 0) * (0.5 + scale) * 0.25 * int(point[i % 8]) * sign_of_seven(entry >> 9, i % 8)


def iq2_s(block: bytes, i: int) -> float:
    k = i // 8
    index = block[2 + k] | (block[66 + k // 4] >> (2 * (k % 4)) & 3) << 8
    scale = nibble(block, 74 + i // 32, i // 16 % 2 == 1)
    return f16(block, 0) * (0.5 + scale) * 0.25 * int(iq2_s_grid()[index][i % 8]) * sign(block[34 + k], i % 8)


def iq3_xxs(block: bytes, i: int) -> float:
    group, rest = divmod(i, 32)
    word = u32(block, 66 + 4 * group)
    point = iq3_xxs_grid()[block[2 + i // 4]]
    signs = word >> (7 * (rest // 8)) & 127
    return f16(block, 0) * (0.5 + (word >> 28)) * 0.5 * int(point[i % 4]) * sign_of_seven(signs, i % 8)


def iq3_s(block: bytes, i: int) -> float:
    k = i // 4
    index = block[2 + k] | (block[66 + k // 8] >> (k % 8) & 1) << 8
    scale = nibble(block, 106 + i // 64, i // 32 % 2 == 1)
    return f16(block, 0) * (1 + 2 * scale) * int(iq3_s_grid()[index][i % 4]) * sign(block[74 + i // 8], i % 8)


def iq1_s(block: bytes, i: int) -> float:
    k = i // 8
    word = u16(block, 34 + 2 * (i // 32))
    index = block[2 + k] | (word >> (3 * (k % 4)) & 7) << 8
    delta = -0.125 if word >> 15 else 0.125
    return f16(block, 0) * (2 * (word >> 12 & 7) + 1) * (int(iq1_s_grid()[index][i % 8]) + delta)


def iq1_m(block: bytes, i: int) -> float:
    k = i // 8
    high = nibble(block, 32 + k // 2, k % 2 == 1)
    index = block[k] | (high & 7) << 8
    delta = -0.125 if high & 8 else 0.125
    words = [u16(block, 48 + 2 * j) for j in range(4)]
    bits_of_d = sum((word >> 12) << (4 * j) for j, word in enumerate(words))
    scale = words[i // 64] >> (3 * (i // 16 % 4)) & 7
    return f16(bits_of_d.to_bytes(2, "little"), 0) * (2 * scale + 1) * (int(iq1_s_grid()[index][i % 8]) + delta)


IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_nl(block: bytes, i: int) -> float:
    return f16(block, 0) * IQ4_LEVELS[nibble_of_32(block, 2, i)]


def iq4_xs(block: bytes, i: int) -> float:
    group = i // 32
    scale = nibble(block, 4 + group // 2, group % 2 == 1) | (u16(block, 2) >> (2 * group) & 3) << 4
    return f16(block, 0) * (scale - 32) * IQ4_LEVELS[nibble_of_32(block, 8 + 16 * group, i % 32)]


def tq1_0(block: bytes, i: int) -> float:
    if i < 160:
        byte, digit = block[i % 32], i // 32
    elif i < 240:
        byte, digit = block[32 + (i - 160) % 16], (i - 160) // 16
    else:
        byte, digit = block[48 + (i - 240) % 4], (i - 240) // 4
    return f16(block, 52) * ((byte * 3**digit % 256) * 3 // 256 - 1)


def tq2_0(block: bytes, i: int) -> float:
    return f16(block, 64) * (two_bits(block, 0, i) - 1)


def mxfp4(block: bytes, i: int) -> float:
    code = nibble_of_32(block, 1, i)
    magnitude = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7]
    return 2.0 ** (block[0] - 127) * (-magnitude if code & 8 else magnitude)


DEFINITIONS: dict[GGMLType, Callable[[bytes, int], float]] = {
    GGMLType.Q4_0: q4_0,
    GGMLType.Q4_1: q4_1,
    GGMLType.Q5_0: q5_0,
    GGMLType.Q5_1: q5_1,
    GGMLType.Q8_0: q8_0,
    GGMLType.Q8_1: q8_1,
    GGMLType.Q2_K: q2_k,
    GGMLType.Q3_K: q3_k,
    GGMLType.Q4_K: q4_k,
    GGMLType.Q5_K: q5_k,
    GGMLType.Q6_K: q6_k,
    GGMLType.Q8_K: q8_k,
    GGMLType.IQ2_XXS: iq2_xxs,
    GGMLType.IQ2_XS: iq2_xs,
    GGMLType.IQ2_S: iq2_s,
    GGMLType.IQ3_XXS: iq3_xxs,
    GGMLType.IQ3_S: iq3_s,
    GGMLType.IQ1_S: iq1_s,
    GGMLType.IQ1_M: iq1_m,
    GGMLType.IQ4_NL: iq4_nl,
    GGMLType.IQ4_XS: iq4_xs,
    GGMLType.TQ1_0: tq1_0,
    GGMLType.TQ2_0: tq2_0,
    GGMLType.MXFP4: mxfp4,
}


def test_every_block_format_has_a_scalar_definition() -> None:
    assert set(unpackable_types()) == set(DEFINITIONS)


@pytest.mark.parametrize("ggml_type", DEFINITIONS, ids=lambda t: t.name)
def test_matches_the_scalar_definition(ggml_type: GGMLType) -> None:
    geometry = block_geometry(ggml_type)
    n_blocks = 2048 // geometry.n_values
    rng = np.random.default_rng(100 + int(ggml_type))
    blocks = rng.integers(0, 256, (n_blocks, geometry.n_bytes), dtype=np.uint8)
    actual = dequantise(ggml_type, blocks, geometry.n_values)
    with np.errstate(over="ignore"):
        expected = np.array(
            [[DEFINITIONS[ggml_type](bytes(block), i) for i in range(geometry.n_values)] for block in blocks]
        ).astype(np.float32)
    assert np.isfinite(expected).mean() > 0.5
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("ggml_type", DEFINITIONS, ids=lambda t: t.name)
def test_unpacked_parts_make_up_the_values(ggml_type: GGMLType) -> None:
    geometry = block_geometry(ggml_type)
    rng = np.random.default_rng(200 + int(ggml_type))
    data = rng.integers(0, 256, (3, 2 * geometry.n_bytes), dtype=np.uint8)
    parts = unpack(ggml_type, data, 2 * geometry.n_values)
    assert parts.quants.dtype == np.int8
    assert parts.scales.dtype == np.float32
    assert parts.quants.shape[:2] == parts.scales.shape
    assert parts.quants.shape[0] == 6
    assert parts.quants[0].size == geometry.n_values
    with np.errstate(all="ignore"):
        values = parts.scales[..., None] * parts.quants
        if parts.offsets is not None:
            assert parts.offsets.dtype == np.float32
            assert parts.offsets.shape == parts.scales.shape
            values = values + parts.offsets[..., None]
    np.testing.assert_array_equal(values.reshape(3, -1), dequantise(ggml_type, data, 2 * geometry.n_values))
