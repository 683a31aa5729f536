"""The IQ formats of 1 to 3 bits: 256 values a block, whose 4 or 8 neighbours together are one point of a grid.

A point's coordinates are magnitudes (IQ1: -1, 0, 1), see `iq_grids`; signs are stored apart. P[k] is point k of the
format's grid. A sign byte's bit v makes value v of its eight negative. Where only 7 bits of it are stored (`signs7`),
the eighth makes the number of ones even.

    IQ2_XXS, 66 bytes           8 groups of 32: value = d * (0.5 + sc) * 0.25 * point * sign
      0-1     d      float16
      2-65    8 x 8 bytes, one a group:
                0-3  byte k = index of P for values 8k .. 8k+7
                4-7  a 32-bit number: bits 7k+6 - 7k = signs7 of values 8k .. 8k+7, bits 31-28 = sc

    IQ2_XS, 74 bytes            16 groups of 16: value = d * (0.5 + sc) * 0.25 * point * sign
      0-1     d           float16
      2-65    qs[32]      uint16, entry k for values 8k .. 8k+7: bits 8-0 = index of P, bits 15-9 = signs7
      66-73   scales[8]   byte k: bits 3-0 = sc of group 2k, bits 7-4 = sc of group 2k + 1

    IQ2_S, 82 bytes             16 groups of 16: value = d * (0.5 + sc) * 0.25 * point * sign
      0-1     d           float16
      2-33    qs[32]      byte k: bits 7-0 of the index of P for values 8k .. 8k+7
      34-65   signs[32]   byte k: signs of values 8k .. 8k+7
      66-73   qh[8]       byte k: bits 2p+1 - 2p = bits 9-8 of index 4k + p
      74-81   scales[8]   as in IQ2_XS

    IQ3_XXS, 98 bytes           8 groups of 32: value = d * (0.5 + sc) * 0.5 * point * sign
      0-1     d           float16
      2-65    qs[64]      byte k = index of P for values 4k .. 4k+3
      66-97   words[8]    as the 32-bit numbers of IQ2_XXS

    IQ3_S, 110 bytes            8 groups of 32: value = d * (1 + 2 * sc) * point * sign
      0-1     d           float16
      2-65    qs[64]      byte k: bits 7-0 of the index of P for values 4k .. 4k+3
      66-73   qh[8]       byte k: bit p = bit 8 of index 8k + p
      74-105  signs[32]   as in IQ2_S
      106-109 scales[4]   byte k: bits 3-0 = sc of group 2k, bits 7-4 = sc of group 2k + 1

    IQ1_S, 50 bytes             8 groups of 32: value = d * (2 * sc + 1) * (point + delta)
      0-1     d           float16
      2-33    qs[32]      byte k: bits 7-0 of the index of P for values 8k .. 8k+7
      34-49   qh[8]       uint16, entry g: bits 3p+2 - 3p = bits 10-8 of index 4g + p, for p = 0..3;
                          bits 14-12 = sc; bit 15: delta = 0.125 if clear, -0.125 if set

    IQ1_M, 56 bytes             16 groups of 16: value = d * (2 * sc + 1) * (point + delta)
      0-31    qs[32]      as in IQ1_S
      32-47   qh[16]      byte k: bits 2-0 = bits 10-8 of index 2k, bit 3: its delta, as in IQ1_S;
                          bits 6-4 and bit 7: the same of index 2k + 1
      48-55   scales[4]   uint16, entry k: bits 3p+2 - 3p = sc of group 4k + p;
                          bits 15-12 = bits 4k+3 - 4k of d, a float16

Scales are rounded to float32 from left to right. To stay with integers, IQ1 unpacks to 8 * (point + delta), which is
8 * point + 1 or - 1, with scales an eighth as large: both steps are exact. Source: the block structures of ggml.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import Blocks, UnpackedBlocks, split_bits, widen
from minfer.quants.iq_grids import (
    iq1_s_grid,
    iq2_s_grid,
    iq2_xs_grid,
    iq2_xxs_grid,
    iq3_s_grid,
    iq3_xxs_grid,
)

IQ2_XXS = np.dtype([("d", "<f2"), ("groups", [("qs", "u1", (4,)), ("word", "<u4")], (8,))])
IQ2_XS = np.dtype([("d", "<f2"), ("qs", "<u2", (32,)), ("scales", "u1", (8,))])
IQ2_S = np.dtype(
    [("d", "<f2"), ("qs", "u1", (32,)), ("signs", "u1", (32,)), ("qh", "u1", (8,)), ("scales", "u1", (8,))]
)
IQ3_XXS = np.dtype([("d", "<f2"), ("qs", "u1", (64,)), ("words", "<u4", (8,))])
IQ3_S = np.dtype(
    [("d", "<f2"), ("qs", "u1", (64,)), ("qh", "u1", (8,)), ("signs", "u1", (32,)), ("scales", "u1", (4,))]
)
IQ1_S = np.dtype([("d", "<f2"), ("qs", "u1", (32,)), ("qh", "<u2", (8,))])
IQ1_M = np.dtype([("qs", "u1", (32,)), ("qh", "u1", (16,)), ("scales", "<u2", (4,))])

_HALF = np.float32(0.5)
_QUARTER = np.float32(0.25)
_EIGHTH = np.float32(0.125)


def unpack_iq2_xxs(blocks: Blocks) -> UnpackedBlocks:
    groups = blocks["groups"]
    signs, scales = _split_words(groups["word"])
    quants = _signed(iq2_xxs_grid()[groups["qs"]], signs)
    return UnpackedBlocks(quants.reshape(-1, 8, 32), widen(blocks["d"]) * (_HALF + scales) * _QUARTER)


def unpack_iq2_xs(blocks: Blocks) -> UnpackedBlocks:
    entries = blocks["qs"]
    quants = _signed(iq2_xs_grid()[entries & np.uint16(511)], _even_signs()[entries >> np.uint16(9)])
    scales = _split_pairs(blocks["scales"])
    return UnpackedBlocks(quants.reshape(-1, 16, 16), widen(blocks["d"]) * (_HALF + scales) * _QUARTER)


def unpack_iq2_s(blocks: Blocks) -> UnpackedBlocks:
    high = split_bits(blocks["qh"][..., None], 2).reshape(-1, 32)
    quants = _signed(iq2_s_grid()[_join_bytes(blocks["qs"], high)], blocks["signs"])
    scales = _split_pairs(blocks["scales"])
    return UnpackedBlocks(quants.reshape(-1, 16, 16), widen(blocks["d"]) * (_HALF + scales) * _QUARTER)


def unpack_iq3_xxs(blocks: Blocks) -> UnpackedBlocks:
    signs, scales = _split_words(blocks["words"])
    quants = _signed(iq3_xxs_grid()[blocks["qs"]], signs)
    return UnpackedBlocks(quants.reshape(-1, 8, 32), widen(blocks["d"]) * (_HALF + scales) * _HALF)


def unpack_iq3_s(blocks: Blocks) -> UnpackedBlocks:
    high = np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
    quants = _signed(iq3_s_grid()[_join_bytes(blocks["qs"], high)], blocks["signs"])
    scales = np.uint8(1) + np.uint8(2) * _split_pairs(blocks["scales"])
    return UnpackedBlocks(quants.reshape(-1, 8, 32), widen(blocks["d"]) * scales)


def unpack_iq1_s(blocks: Blocks) -> UnpackedBlocks:
    words = blocks["qh"]
    points = iq1_s_grid()[_join_bytes(blocks["qs"], _split_thrice(words).reshape(-1, 32))]
    quants = np.int8(8) * points.reshape(-1, 8, 32) + _delta(words >> np.uint16(15))[..., None]
    scales = np.uint16(2) * ((words >> np.uint16(12)) & np.uint16(7)) + np.uint16(1)
    return UnpackedBlocks(quants, widen(blocks["d"]) * scales * _EIGHTH)


def unpack_iq1_m(blocks: Blocks) -> UnpackedBlocks:
    nibbles = _split_pairs(blocks["qh"])
    points = iq1_s_grid()[_join_bytes(blocks["qs"], nibbles & np.uint8(7))]
    quants = np.int8(8) * points + _delta(nibbles >> np.uint8(3))[..., None]
    words = blocks["scales"]
    parts_of_d = (words >> np.uint16(12)) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(parts_of_d, axis=1).view(np.float16)
    scales = np.uint16(2) * _split_thrice(words).reshape(-1, 16) + np.uint16(1)
    return UnpackedBlocks(quants.reshape(-1, 16, 16), widen(d) * scales * _EIGHTH)


def _signed(points: NDArray[np.int8], signs: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Magnitudes, 8 for each of the sign bytes, shape (n_blocks, ...), with their signs; shape (n_blocks, n, 8)."""
    factors = _sign_factors()[signs]
    return points.reshape(factors.shape) * factors


def _split_words(words: NDArray[np.uint32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Words, shape (n_blocks, 8), into sign bytes, shape (n_blocks, 8, 4), and scales, shape (n_blocks, 8)."""
    signs7 = (words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32)) & np.uint32(127)
    return _even_signs()[signs7], (words >> np.uint32(28)).astype(np.float32)


def _split_pairs(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes, shape (n_blocks, n), into their low and high four bits in turn, shape (n_blocks, 2n)."""
    return split_bits(packed[..., None], 4).reshape(len(packed), -1)


def _split_thrice(words: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """The four lowest 3-bit fields of each word, shape (..., 4)."""
    fields: NDArray[np.uint16] = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & np.uint16(7)
    return fields


def _join_bytes(low: NDArray[np.uint8], high: NDArray[Any]) -> NDArray[np.uint16]:
    joined: NDArray[np.uint16] = (high.astype(np.uint16) << np.uint16(8)) | low
    return joined


def _delta(is_negative: NDArray[Any]) -> NDArray[np.int8]:
    """Eight deltas: 1 where the bit is clear, -1 where it is set."""
    return np.int8(1) - np.int8(2) * is_negative.astype(np.int8)


@cache
def _even_signs() -> NDArray[np.uint8]:
    """Sign bytes by their lower 7 bits, shape (128,), read-only: bit 7 makes the number of ones even."""
    low = np.arange(128, dtype=np.uint8)
    signs = low | ((np.bitwise_count(low) & np.uint8(1)) << np.uint8(7))
    signs.setflags(write=False)
    return signs


@cache
def _sign_factors() -> NDArray[np.int8]:
    """1 or -1 for each bit of a sign byte, shape (256, 8), read-only."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    factors = _delta(bits)
    factors.setflags(write=False)
    return factors
