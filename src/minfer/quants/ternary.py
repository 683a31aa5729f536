"""The ternary formats: 256 values a block, each -1, 0 or 1 times one scale.

    TQ1_0, 54 bytes             value[i] = d * (t[i] - 1)
      0-47    qs[48]  five ternary digits a byte: byte b = 0..31 holds t[b + 32n], byte 32 + b holds t[160 + b + 16n]
                      with b = 0..15; n = 0..4
      48-51   qh[4]   four digits a byte: byte b holds t[240 + b + 4n], n = 0..3
      52-53   d       float16
      A byte is a fraction of 256: times 3^n modulo 256, digit n is what times 3 carries over 256.

    TQ2_0, 66 bytes             value[i] = d * (q[i] - 1)
      0-63    qs[64]  byte 32h + l: bits 2j+1 - 2j = q[128h + 32j + l], for h = 0..1, j = 0..3, l = 0..31
      64-65   d       float16

q = 3 of TQ2_0 is never written by a quantiser, and reads as 2. Source: the block structures of ggml.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import Blocks, UnpackedBlocks, split_bits, widen

TQ1_0 = np.dtype([("qs", "u1", (48,)), ("qh", "u1", (4,)), ("d", "<f2")])
TQ2_0 = np.dtype([("qs", "u1", (64,)), ("d", "<f2")])


def unpack_tq1_0(blocks: Blocks) -> UnpackedBlocks:
    digits = np.concatenate(
        [
            _split_digits(blocks["qs"][:, :32], 5),
            _split_digits(blocks["qs"][:, 32:], 5),
            _split_digits(blocks["qh"], 4),
        ],
        axis=1,
    )
    return UnpackedBlocks(digits.view(np.int8)[:, None, :] - np.int8(1), widen(blocks["d"]))


def unpack_tq2_0(blocks: Blocks) -> UnpackedBlocks:
    quants = split_bits(blocks["qs"].reshape(-1, 2, 32), 2).reshape(-1, 1, 256)
    return UnpackedBlocks(quants.view(np.int8) - np.int8(1), widen(blocks["d"]))


def _split_digits(packed: NDArray[np.uint8], n_digits: int) -> NDArray[np.uint8]:
    """The ternary digits of bytes, shape (n_blocks, n), first digits first: shape (n_blocks, n_digits * n)."""
    powers = np.uint8(3) ** np.arange(n_digits, dtype=np.uint8)[:, None]
    fractions = packed[:, None, :] * powers
    digits = ((fractions.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8)
    return digits.reshape(len(packed), -1)
