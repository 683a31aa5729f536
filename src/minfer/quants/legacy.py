"""The classic block formats: 32 values a block, one scale, and for some an offset.

    Q4_0, 18 bytes                       value[i] = d * (q[i] - 8)
      0-1    d       float16
      2-17   qs[16]  byte j: bits 3-0 = q[j], bits 7-4 = q[j + 16]

    Q4_1, 20 bytes                       value[i] = d * q[i] + m
      0-1    d       float16
      2-3    m       float16
      4-19   qs[16]  as in Q4_0

    Q5_0, 22 bytes                       value[i] = d * (q[i] - 16)
      0-1    d       float16
      2-5    qh[4]   a 32-bit number whose bit i is bit 4 of q[i]
      6-21   qs[16]  byte j: bits 3-0 = low bits of q[j], bits 7-4 = low bits of q[j + 16]

    Q5_1, 24 bytes                       value[i] = d * q[i] + m
      0-1    d       float16
      2-3    m       float16
      4-7    qh[4]   as in Q5_0
      8-23   qs[16]  as in Q5_0

    Q8_0, 34 bytes                       value[i] = d * q[i]
      0-1    d       float16
      2-33   qs[32]  int8, q[i]

    Q8_1, 36 bytes                       value[i] = d * q[i]
      0-1    d       float16
      2-3    s       float16, d * (sum of all q): for dot products with formats that have an offset
      4-35   qs[32]  int8, q[i]

Source: the block structures of ggml. The quantisers do what ggml's reference quantisers do, to the bit: the symmetric
4- and 5-bit ones put the largest magnitude on the lowest integer, which has no positive counterpart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import (
    Blocks,
    UnpackedBlocks,
    join_bits,
    reciprocal_or_zero,
    split_bits,
    to_float16,
    widen,
)

Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", (16,))])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))])
Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
Q8_0 = np.dtype([("d", "<f2"), ("qs", "i1", (32,))])
Q8_1 = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", (32,))])


def unpack_q4_0(blocks: Blocks) -> UnpackedBlocks:
    return UnpackedBlocks(_four_bits(blocks) - np.int8(8), widen(blocks["d"]))


def unpack_q4_1(blocks: Blocks) -> UnpackedBlocks:
    return UnpackedBlocks(_four_bits(blocks), widen(blocks["d"]), widen(blocks["m"]))


def unpack_q5_0(blocks: Blocks) -> UnpackedBlocks:
    return UnpackedBlocks(_five_bits(blocks) - np.int8(16), widen(blocks["d"]))


def unpack_q5_1(blocks: Blocks) -> UnpackedBlocks:
    return UnpackedBlocks(_five_bits(blocks), widen(blocks["d"]), widen(blocks["m"]))


def unpack_q8(blocks: Blocks) -> UnpackedBlocks:
    """Q8_0 and Q8_1."""
    return UnpackedBlocks(blocks["qs"][:, None, :], widen(blocks["d"]))


def encode_q4_0(values: NDArray[np.float32]) -> Blocks:
    quants, d = _nearest_symmetric(values, n_bits=4)
    blocks = np.empty(len(values), Q4_0)
    blocks["d"] = d
    blocks["qs"] = _pack_low_bits(quants)
    return blocks


def encode_q4_1(values: NDArray[np.float32]) -> Blocks:
    quants, d, m = _nearest_affine(values, n_bits=4)
    blocks = np.empty(len(values), Q4_1)
    blocks["d"] = d
    blocks["m"] = m
    blocks["qs"] = _pack_low_bits(quants)
    return blocks


def encode_q5_0(values: NDArray[np.float32]) -> Blocks:
    quants, d = _nearest_symmetric(values, n_bits=5)
    blocks = np.empty(len(values), Q5_0)
    blocks["d"] = d
    blocks["qh"] = _pack_fifth_bits(quants)
    blocks["qs"] = _pack_low_bits(quants)
    return blocks


def encode_q5_1(values: NDArray[np.float32]) -> Blocks:
    quants, d, m = _nearest_affine(values, n_bits=5)
    blocks = np.empty(len(values), Q5_1)
    blocks["d"] = d
    blocks["m"] = m
    blocks["qh"] = _pack_fifth_bits(quants)
    blocks["qs"] = _pack_low_bits(quants)
    return blocks


def encode_q8_0(values: NDArray[np.float32]) -> Blocks:
    d = np.abs(values).max(axis=1) / np.float32(127)
    scaled = values * reciprocal_or_zero(d)[:, None]
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    # Halves go away from zero. Adding 0.5 and flooring would also lift 0.49999997, whose sum rounds up to 1.
    whole += magnitude - whole >= np.float32(0.5)
    blocks = np.empty(len(values), Q8_0)
    blocks["d"] = to_float16(d)
    blocks["qs"] = np.copysign(whole, scaled).astype(np.int8)
    return blocks


def _four_bits(blocks: Blocks) -> NDArray[np.int8]:
    return split_bits(blocks["qs"], 4).reshape(len(blocks), 1, 32).view(np.int8)


def _five_bits(blocks: Blocks) -> NDArray[np.int8]:
    fifth = np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
    fifth <<= np.uint8(4)
    return _four_bits(blocks) | fifth[:, None, :].view(np.int8)


def _pack_low_bits(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return join_bits((quants & np.uint8(15)).reshape(-1, 2, 16), 4)


def _pack_fifth_bits(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.packbits(quants >> np.uint8(4), axis=-1, bitorder="little")


def _nearest_symmetric(values: NDArray[np.float32], n_bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Unsigned quants, shape (n_blocks, 32), for value = d * (q - 2^(n_bits - 1)), and d, shape (n_blocks,)."""
    zero_point = 1 << (n_bits - 1)
    largest_at = np.abs(values).argmax(axis=1, keepdims=True)
    d = np.take_along_axis(values, largest_at, axis=1) / np.float32(-zero_point)
    quants = (values * reciprocal_or_zero(d) + np.float32(zero_point + 0.5)).astype(np.uint8)
    return np.minimum(quants, np.uint8(2 * zero_point - 1)), to_float16(d[:, 0])


def _nearest_affine(
    values: NDArray[np.float32], n_bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16]]:
    """Unsigned quants, shape (n_blocks, 32), for value = d * q + m, and d and m, shape (n_blocks,)."""
    largest_quant = (1 << n_bits) - 1
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(largest_quant)
    quants = ((values - low) * reciprocal_or_zero(d) + np.float32(0.5)).astype(np.uint8)
    return np.minimum(quants, np.uint8(largest_quant)), to_float16(d[:, 0]), to_float16(low[:, 0])
