"""Searches for the scale of a group of values, as ggml's reference quantisers do them, for many groups at once.

Arrays have shape (group_size, n_groups): a sum over a group then adds whole rows in the order of the values, which is
both what the reference does and what NumPy does fast. Errors are weighted: large values count for more.

Each search returns scales only. The integers are found afterwards, from the scales as they were stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_ALL_ZERO_BELOW = np.float32(1e-15)
_MAX_REFINEMENTS = 5


def search_scale_and_minimum(
    values: Floats,
    weights: Floats,
    *,
    n_levels: int,
    first_stretch: float,
    n_steps: int,
    error: Callable[[Floats], NDArray[Any]],
) -> tuple[Floats, Floats]:
    """The scale and the minimum of value = scale * q - minimum, for 0 <= q < n_levels.

    Tries `n_steps` roundings, from the best minimum so far, each with the grid stretched a tenth of a step further,
    beginning at `first_stretch`; fits scale and minimum to each by weighted least squares, and keeps the fit with the
    least weighted `error`. Minima are never negative, so zero always lies within the range.

    Args:
        values: shape (group_size, n_groups).
        weights: of each value's error, same shape.
        error: an error's cost: `np.abs` or `np.square`.

    Returns:
        Scales and minima, shape (n_groups,), neither negative.
    """
    largest = np.float32(n_levels - 1)
    high = values.max(axis=0)
    sum_w = weights.sum(axis=0)
    sum_x = (weights * values).sum(axis=0)

    def rounded(offset: Floats, stretched: np.float32) -> Floats:
        steps_per_unit = _divide(stretched, high - offset)
        quants: Floats = np.clip(np.rint(steps_per_unit * (values - offset)), np.float32(0), largest)
        return quants

    def cost(quants: Floats, scale: Floats, offset: Floats) -> Floats:
        total: Floats = (weights * error(scale * quants + offset - values)).sum(axis=0)
        return total

    best_offset = np.minimum(values.min(axis=0), np.float32(0))
    best_scale = _divide(np.float32(1), _divide(largest, high - best_offset))
    best_cost = cost(rounded(best_offset, largest), best_scale, best_offset)
    for step in range(n_steps):
        quants = rounded(best_offset, np.float32(first_stretch + 0.1 * step) + largest)
        weighted = weights * quants
        sum_l = weighted.sum(axis=0)
        sum_l2 = (weighted * quants).sum(axis=0)
        sum_xl = (weighted * values).sum(axis=0)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        scale = _divide(sum_w * sum_xl - sum_x * sum_l, determinant)
        offset = _divide(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        through_zero = offset > 0
        scale = np.where(through_zero, _divide(sum_xl, sum_l2), scale)
        offset = np.where(through_zero, np.float32(0), offset)
        new_cost = cost(quants, scale, offset)
        better = (determinant > 0) & (new_cost < best_cost)
        best_scale = np.where(better, scale, best_scale)
        best_offset = np.where(better, offset, best_offset)
        best_cost = np.where(better, new_cost, best_cost)
    return best_scale, np.abs(best_offset)


def search_scale(values: Floats, n_levels: int) -> Floats:
    """The scale of value = scale * q, for -n_levels / 2 <= q < n_levels / 2; it takes the sign that serves best.

    Tries 19 roundings around the one that puts the largest magnitude on the lowest q, and keeps the one whose
    least-squares scale, with the squared values as weights, explains the values best.

    Args:
        values: shape (group_size, n_groups).

    Returns:
        Scales, shape (n_groups,); 0 for groups of zeros.
    """
    half = np.float32(n_levels // 2)
    extreme = _extreme(values)
    weights = values * values
    best_scale = np.zeros_like(extreme)
    best_gain = np.full_like(extreme, -np.inf)
    for tenth in (0, *range(-9, 0), *range(1, 10)):
        quants = _rounded_symmetric(values * _divide(-(half + np.float32(0.1 * tenth)), extreme), half)
        weighted = weights * quants
        sum_xl = (weights * values * quants).sum(axis=0)
        sum_l2 = (weighted * quants).sum(axis=0)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best_gain * sum_l2)
        scale = _divide(sum_xl, sum_l2)
        best_scale = np.where(better, scale, best_scale)
        best_gain = np.where(better, scale * sum_xl, best_gain)
    return best_scale


def refine_scale(values: Floats, n_levels: int) -> Floats:
    """The scale of value = scale * q, for -n_levels / 2 <= q < n_levels / 2, by moving one q at a time.

    Begins with the largest magnitude on the lowest q. Then each value in turn is rounded anew with the scale that fits
    all the others best, and keeps the new q if that improves the fit (weighted by the squared values); five rounds at
    most.

    Args:
        values: shape (group_size, n_groups).

    Returns:
        Scales, shape (n_groups,); 0 for groups of zeros.
    """
    half = np.float32(n_levels // 2)
    weights = values * values
    quants = _rounded_symmetric(values * _divide(-half, _extreme(values)), half)
    sum_xl = (weights * values * quants).sum(axis=0)
    sum_l2 = (weights * quants * quants).sum(axis=0)
    for _ in range(_MAX_REFINEMENTS):
        any_moved = False
        for x, w, q in zip(values, weights, quants, strict=True):
            others_xl = sum_xl - w * x * q
            others_l2 = sum_l2 - w * q * q
            new_q = _rounded_symmetric(_divide(x * others_l2, others_xl), half)
            new_xl = others_xl + w * x * new_q
            new_l2 = others_l2 + w * new_q * new_q
            moved = (others_xl > 0) & (new_q != q) & (new_l2 > 0)
            moved &= new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            if moved.any():
                any_moved = True
                np.copyto(q, new_q, where=moved)
                np.copyto(sum_xl, new_xl, where=moved)
                np.copyto(sum_l2, new_l2, where=moved)
        if not any_moved:
            break
    return _divide(sum_xl, sum_l2)


def _extreme(values: Floats) -> Floats:
    """The value of the largest magnitude in each group, with its sign; 0 where the group counts as zeros."""
    at = np.abs(values).argmax(axis=0, keepdims=True)
    extreme = np.take_along_axis(values, at, axis=0)[0]
    return np.where(np.abs(extreme) < _ALL_ZERO_BELOW, np.float32(0), extreme)


def _rounded_symmetric(scaled: Floats, half: np.float32) -> Floats:
    quants: Floats = np.clip(np.rint(scaled), -half, half - np.float32(1))
    return quants


def _divide(numerator: Floats | np.float32, denominator: Floats) -> Floats:
    """Elementwise; 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator != 0)
