"""The non-linear 4-bit formats: each 4-bit code stands for one of 16 levels, denser around zero.

    code     0     1    2    3    4    5    6    7   8   9  10  11  12  13  14   15
    L     -127  -104  -83  -65  -49  -35  -22  -10   1  13  25  38  53  69  89  113

    IQ4_NL, 18 bytes            32 values: value[i] = d * L[q[i]]
      0-1    d       float16
      2-17   qs[16]  byte j: bits 3-0 = q[j], bits 7-4 = q[j + 16]

    IQ4_XS, 136 bytes           256 values in 8 groups of 32: value[i] = d * (sc[g] - 32) * L[q[i]], g = i // 32
      0-1    d            float16
      2-3    scales_h     uint16: bits 2g+1 - 2g = bits 5-4 of sc[g]
      4-7    scales_l[4]  byte k: bits 3-0 = low bits of sc[2k], bits 7-4 = low bits of sc[2k + 1]
      8-135  qs[128]      byte 16g + j: bits 3-0 = q[32g + j], bits 7-4 = q[32g + 16 + j]

Products are rounded to float32 from left to right. Source: the block structures of ggml.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import Blocks, UnpackedBlocks, split_bits, widen

IQ4_NL = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
IQ4_XS = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))])


def unpack_iq4_nl(blocks: Blocks) -> UnpackedBlocks:
    quants = _levels()[split_bits(blocks["qs"], 4)]
    return UnpackedBlocks(quants.reshape(-1, 1, 32), widen(blocks["d"]))


def unpack_iq4_xs(blocks: Blocks) -> UnpackedBlocks:
    quants = _levels()[split_bits(blocks["qs"].reshape(-1, 8, 16), 4)]
    low = split_bits(blocks["scales_l"][..., None], 4).reshape(-1, 8)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scales = (low | (high.astype(np.uint8) << np.uint8(4))).view(np.int8) - np.int8(32)
    return UnpackedBlocks(quants.reshape(-1, 8, 32), widen(blocks["d"]) * scales)


@cache
def _levels() -> NDArray[np.int8]:
    levels = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=np.int8)
    levels.setflags(write=False)
    return levels
