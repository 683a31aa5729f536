"""Quantisers of the K formats, after ggml's reference quantisers (without an importance matrix).

In three steps: search each group's scale and minimum in float32 (`k_search`); round these to the small integers and
float16 of the block; round the values with the scales as they were stored, so that their rounding is made good where
possible. The layouts are drawn in `k_quants`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minfer.quants.blocks import Blocks, join_bits, to_float16, widen
from minfer.quants.k_quants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from minfer.quants.k_search import refine_scale, search_scale, search_scale_and_minimum

Floats = NDArray[np.float32]


def encode_q2_k(values: Floats) -> Blocks:
    groups = _as_groups(values, 16)
    scales, minima = search_scale_and_minimum(
        groups, np.abs(groups), n_levels=4, first_stretch=-0.5, n_steps=16, error=np.abs
    )
    blocks = np.empty(len(values), Q2_K)
    blocks["d"], small_scales = _round_scales(scales.reshape(-1, 16), largest=15)
    blocks["dmin"], small_minima = _round_scales(minima.reshape(-1, 16), largest=15)
    blocks["scales"] = small_scales | (small_minima << np.uint8(4))
    quants = _round_affine(values, blocks, small_scales, small_minima, n_levels=4)
    blocks["qs"] = join_bits(quants.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    return blocks


def encode_q3_k(values: Floats) -> Blocks:
    scales = refine_scale(_as_groups(values, 16), n_levels=8)
    blocks = np.empty(len(values), Q3_K)
    blocks["d"], small_scales = _round_signed_scales(scales.reshape(-1, 16), lowest=-32)
    quants = _round_symmetric(values, blocks, small_scales, n_levels=8)
    blocks["hmask"] = join_bits((quants >> np.uint8(2)).reshape(-1, 8, 32), 1)
    blocks["qs"] = join_bits((quants & np.uint8(3)).reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    six_bits = (small_scales + np.int8(32)).view(np.uint8)
    blocks["scales"][:, :8] = join_bits((six_bits & np.uint8(15)).reshape(-1, 2, 8), 4)
    blocks["scales"][:, 8:] = join_bits((six_bits >> np.uint8(4)).reshape(-1, 4, 4), 2)
    return blocks


def encode_q4_k(values: Floats) -> Blocks:
    blocks = np.empty(len(values), Q4_K)
    quants = _fill_scales_and_minima(blocks, values, n_levels=16, first_stretch=-1.0, n_steps=21)
    blocks["qs"] = join_bits(quants.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)
    return blocks


def encode_q5_k(values: Floats) -> Blocks:
    blocks = np.empty(len(values), Q5_K)
    quants = _fill_scales_and_minima(blocks, values, n_levels=32, first_stretch=-0.5, n_steps=16)
    blocks["qh"] = join_bits((quants >> np.uint8(4)).reshape(-1, 8, 32), 1)
    blocks["qs"] = join_bits((quants & np.uint8(15)).reshape(-1, 4, 2, 32), 4).reshape(-1, 128)
    return blocks


def encode_q6_k(values: Floats) -> Blocks:
    scales = search_scale(_as_groups(values, 16), n_levels=64)
    blocks = np.empty(len(values), Q6_K)
    blocks["d"], blocks["scales"] = _round_signed_scales(scales.reshape(-1, 16), lowest=-128)
    quants = _round_symmetric(values, blocks, blocks["scales"], n_levels=64)
    blocks["ql"] = join_bits((quants & np.uint8(15)).reshape(-1, 2, 2, 64), 4).reshape(-1, 128)
    blocks["qh"] = join_bits((quants >> np.uint8(4)).reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    return blocks


def _as_groups(values: Floats, group_size: int) -> Floats:
    """Blocks, shape (n_blocks, 256), as groups of shape (group_size, n_groups)."""
    return np.ascontiguousarray(values.reshape(-1, group_size).T)


def _fill_scales_and_minima(
    blocks: Blocks, values: Floats, *, n_levels: int, first_stretch: float, n_steps: int
) -> NDArray[np.uint8]:
    """Fills `d`, `dmin` and `scales` of Q4_K or Q5_K blocks; returns the quants, shape (n_blocks, 256)."""
    groups = _as_groups(values, 32)
    mean_magnitude = np.sqrt((groups * groups).sum(axis=0) / np.float32(32))
    scales, minima = search_scale_and_minimum(
        groups,
        mean_magnitude + np.abs(groups),
        n_levels=n_levels,
        first_stretch=first_stretch,
        n_steps=n_steps,
        error=np.square,
    )
    blocks["d"], small_scales = _round_scales(scales.reshape(-1, 8), largest=63)
    blocks["dmin"], small_minima = _round_scales(minima.reshape(-1, 8), largest=63)
    for at, small in ((0, small_scales), (4, small_minima)):
        blocks["scales"][:, at : at + 4] = small[:, :4] | ((small[:, 4:] >> np.uint8(4)) << np.uint8(6))
    blocks["scales"][:, 8:] = (small_scales[:, 4:] & np.uint8(15)) | (small_minima[:, 4:] << np.uint8(4))
    return _round_affine(values, blocks, small_scales, small_minima, n_levels=n_levels)


def _round_scales(scales: Floats, *, largest: int) -> tuple[NDArray[np.float16], NDArray[np.uint8]]:
    """Each block's unit, shape (n_blocks,), and its groups' multiples, 0 to `largest`, shape (n_blocks, n_groups).

    Multiples are 0 where the unit is.
    """
    top = scales.max(axis=1)
    unit = to_float16(top / np.float32(largest))
    inverse = np.divide(np.float32(largest), top, out=np.zeros_like(top), where=unit != 0)
    multiples = np.clip(np.rint(inverse[:, None] * scales), np.float32(0), np.float32(largest))
    return unit, multiples.astype(np.uint8)


def _round_signed_scales(scales: Floats, *, lowest: int) -> tuple[NDArray[np.float16], NDArray[np.int8]]:
    """As `_round_scales`, with the largest magnitude on `lowest`, and multiples from there to -lowest - 1."""
    at = np.abs(scales).argmax(axis=1, keepdims=True)
    top = np.take_along_axis(scales, at, axis=1)[:, 0]
    inverse = np.divide(np.float32(lowest), top, out=np.zeros_like(top), where=top != 0)
    unit = to_float16(np.divide(np.float32(1), inverse, out=np.zeros_like(top), where=top != 0))
    inverse[unit == 0] = 0
    multiples = np.clip(np.rint(inverse[:, None] * scales), np.float32(lowest), np.float32(-lowest - 1))
    return unit, multiples.astype(np.int8)


def _round_affine(
    values: Floats,
    blocks: Blocks,
    small_scales: NDArray[np.uint8],
    small_minima: NDArray[np.uint8],
    *,
    n_levels: int,
) -> NDArray[np.uint8]:
    steps = widen(blocks["d"]) * small_scales
    minima = widen(blocks["dmin"]) * small_minima
    raised = values.reshape(*steps.shape, -1) + minima[..., None]
    quants = _round_to_steps(raised, steps)
    return np.clip(quants, np.float32(0), np.float32(n_levels - 1)).astype(np.uint8).reshape(values.shape)


def _round_symmetric(
    values: Floats, blocks: Blocks, small_scales: NDArray[np.int8], *, n_levels: int
) -> NDArray[np.uint8]:
    """Quants raised by n_levels / 2, so that they are unsigned as in the block."""
    steps = widen(blocks["d"]) * small_scales
    half = n_levels // 2
    quants = np.clip(_round_to_steps(values.reshape(*steps.shape, -1), steps), np.float32(-half), np.float32(half - 1))
    return (quants + np.float32(half)).astype(np.uint8).reshape(values.shape)


def _round_to_steps(values: Floats, steps: Floats) -> Floats:
    """The nearest whole number of steps; 0 where the step is 0, since there every quant decodes to the same value."""
    steps = steps[..., None]
    return np.rint(np.divide(values, steps, out=np.zeros_like(values), where=steps != 0))
