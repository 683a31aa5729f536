"""The K formats: 256 values a block, in groups of 16 or 32 whose scales (and minima) are small integers themselves.

Within a block value i lies in group g = i // 16 (Q2_K, Q3_K, Q6_K) or g = i // 32 (Q4_K, Q5_K). The quants interleave
values that are 32 (or 64) apart, so below h = i // 128 is the half, j = i % 128 // 32 the quarter in it and l = i % 32.

    Q2_K, 84 bytes                         value[i] = d * sc[g] * q[i] - dmin * mn[g]
      0-15     scales[16]  byte g: bits 3-0 = sc[g], bits 7-4 = mn[g]
      16-79    qs[64]      byte 32h + l: bits 2j+1 - 2j = q[i]
      80-81    d           float16
      82-83    dmin        float16

    Q3_K, 110 bytes                        value[i] = d * (sc[g] - 32) * (q[i] - 4)
      0-31     hmask[32]   byte l: bit 4h + j = bit 2 of q[i]
      32-95    qs[64]      byte 32h + l: bits 2j+1 - 2j = bits 1-0 of q[i]
      96-107   scales[12]  bytes 0-7: byte k: bits 3-0 = low bits of sc[k], bits 7-4 = low bits of sc[k + 8];
                           bytes 8-11: byte 8 + k: bits 2p+1 - 2p = bits 5-4 of sc[k + 4p], for p = 0..3
      108-109  d           float16

    Q4_K, 144 bytes                        value[i] = d * sc[g] * q[i] - dmin * mn[g]
      0-1      d           float16
      2-3      dmin        float16
      4-15     scales[12]  for k = 0..3: byte k:     bits 5-0 = sc[k],                bits 7-6 = bits 5-4 of sc[k + 4]
                                         byte k + 4: bits 5-0 = mn[k],                bits 7-6 = bits 5-4 of mn[k + 4]
                                         byte k + 8: bits 3-0 = low bits of sc[k + 4], bits 7-4 = low bits of mn[k + 4]
      16-143   qs[128]     byte 32k + l: bits 3-0 = q[64k + l], bits 7-4 = q[64k + 32 + l], for k = 0..3

    Q5_K, 176 bytes                        value[i] = d * sc[g] * q[i] - dmin * mn[g]
      0-1      d           float16
      2-3      dmin        float16
      4-15     scales[12]  as in Q4_K
      16-47    qh[32]      byte l: bit g = bit 4 of q[32g + l]
      48-175   qs[128]     low bits, as in Q4_K

    Q6_K, 210 bytes                        value[i] = d * sc[g] * (q[i] - 32)
      0-127    ql[128]     byte 64h + k: bits 3-0 = low bits of q[128h + k], bits 7-4 = low bits of q[128h + 64 + k]
      128-191  qh[64]      byte 32h + l: bits 2j+1 - 2j = bits 5-4 of q[i]
      192-207  scales[16]  int8, sc[g]
      208-209  d           float16

    Q8_K, 292 bytes                        value[i] = d * q[i]
      0-3      d           float32
      4-259    qs[256]     int8, q[i]
      260-291  bsums[16]   int16, the sum of each 16 q: for dot products with formats that have minima

Products are rounded to float32 from left to right. Source: the block structures of ggml.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import Blocks, UnpackedBlocks, split_bits, widen

Q2_K = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qs", "u1", (128,))])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))])
Q6_K = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2")])
Q8_K = np.dtype([("d", "<f4"), ("qs", "i1", (256,)), ("bsums", "<i2", (16,))])


def unpack_q2_k(blocks: Blocks) -> UnpackedBlocks:
    quants = split_bits(blocks["qs"].reshape(-1, 2, 32), 2)
    scales = blocks["scales"] & np.uint8(15)
    minima = blocks["scales"] >> np.uint8(4)
    return UnpackedBlocks(
        quants.reshape(-1, 16, 16).view(np.int8),
        widen(blocks["d"]) * scales,
        widen(blocks["dmin"]) * -minima.astype(np.float32),
    )


def unpack_q3_k(blocks: Blocks) -> UnpackedBlocks:
    quants = split_bits(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    high = split_bits(blocks["hmask"], 1).reshape(-1, 16, 16)
    high <<= np.uint8(2)
    quants |= high
    low_scales = split_bits(blocks["scales"][:, :8], 4).reshape(-1, 16)
    high_scales = split_bits(blocks["scales"][:, 8:], 2).reshape(-1, 16)
    scales = (low_scales | (high_scales << np.uint8(4))).view(np.int8) - np.int8(32)
    return UnpackedBlocks(quants.view(np.int8) - np.int8(4), widen(blocks["d"]) * scales)


def unpack_q4_k(blocks: Blocks) -> UnpackedBlocks:
    return _with_scales_and_minima(blocks, _low_bits(blocks))


def unpack_q5_k(blocks: Blocks) -> UnpackedBlocks:
    high = split_bits(blocks["qh"], 1)
    high <<= np.uint8(4)
    return _with_scales_and_minima(blocks, _low_bits(blocks) | high)


def unpack_q6_k(blocks: Blocks) -> UnpackedBlocks:
    quants = split_bits(blocks["qh"].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    quants <<= np.uint8(4)
    quants |= split_bits(blocks["ql"].reshape(-1, 2, 64), 4).reshape(-1, 16, 16)
    return UnpackedBlocks(quants.view(np.int8) - np.int8(32), widen(blocks["d"]) * blocks["scales"])


def unpack_q8_k(blocks: Blocks) -> UnpackedBlocks:
    return UnpackedBlocks(blocks["qs"][:, None, :], blocks["d"].astype(np.float32)[:, None])


def _low_bits(blocks: Blocks) -> NDArray[np.uint8]:
    return split_bits(blocks["qs"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)


def scales_and_minima(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The 6-bit scales and minima, each (..., 8), in the 12 bytes of a Q4_K or Q5_K block, (..., 12)."""
    scales_0_to_3, minima_0_to_3, low_4_to_7 = np.split(packed, 3, axis=-1)
    scales_4_to_7 = (low_4_to_7 & np.uint8(15)) | ((scales_0_to_3 >> np.uint8(2)) & np.uint8(0x30))
    minima_4_to_7 = (low_4_to_7 >> np.uint8(4)) | ((minima_0_to_3 >> np.uint8(2)) & np.uint8(0x30))
    scales = np.concatenate([scales_0_to_3 & np.uint8(63), scales_4_to_7], axis=-1)
    minima = np.concatenate([minima_0_to_3 & np.uint8(63), minima_4_to_7], axis=-1)
    return scales, minima


def _with_scales_and_minima(blocks: Blocks, quants: NDArray[np.uint8]) -> UnpackedBlocks:
    scales, minima = scales_and_minima(blocks["scales"])
    return UnpackedBlocks(
        quants.view(np.int8),
        widen(blocks["d"]) * scales,
        widen(blocks["dmin"]) * -minima.astype(np.float32),
    )
