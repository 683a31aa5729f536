"""MXFP4: 32 four-bit floats and one power of two.

    MXFP4, 17 bytes             value[i] = 2^(e - 128) * L[q[i]]
      0      e       uint8
      1-16   qs[16]  byte j: bits 3-0 = q[j], bits 7-4 = q[j + 16]

    code  0  1  2  3  4  5  6   7   8   9  10  11  12  13  14   15
    L     0  1  2  3  4  6  8  12   0  -1  -2  -3  -4  -6  -8  -12

A code is an E2M1 float (sign, two bits of exponent, one of fraction). L holds twice its value, to be an integer, so
the scale is half of the standard's 2^(e - 127). As in ggml, e = 255 is a power like the others, not NaN, and code 8 is
plain zero.

Source: OCP Microscaling Formats (MX) Specification 1.0; the block structure of ggml.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import Blocks, UnpackedBlocks, split_bits

MXFP4 = np.dtype([("e", "u1"), ("qs", "u1", (16,))])


def unpack_mxfp4(blocks: Blocks) -> UnpackedBlocks:
    quants = _levels()[split_bits(blocks["qs"], 4)]
    exponents = blocks["e"].astype(np.int32)[:, None] - np.int32(128)
    return UnpackedBlocks(quants.reshape(-1, 1, 32), np.ldexp(np.float32(1), exponents))


@cache
def _levels() -> NDArray[np.int8]:
    levels = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), dtype=np.int8)
    levels.setflags(write=False)
    return levels
