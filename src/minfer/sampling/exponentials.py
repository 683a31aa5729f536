"""e**x for x <= 0 and its sum, in float64 and in operations that IEEE 754 rounds: the same bits however it is computed.

Every implementation of `VocabularyOps.exp_sum` follows this file, which is written for NumPy:

- e**x = 2**n * e**r with n = round(x / ln 2) and r = x - n ln 2, where ln 2 is split into two numbers, the first of
  which has trailing zeros so that n times it is exact (Cody and Waite, "Software Manual for the Elementary Functions",
  1980); e**r is its Taylor polynomial of degree 12. No product is fused with a sum. The polynomial is off by less than
  (ln 2 / 2)**13 / 13! = 1.7e-16, and with the roundings of r and of Horner's rule the error is below 4 * 2**-53.
- What is below e**-700 counts as 0.
- Values lie in rows of `LANES`, `ROWS` rows a block, the last row filled up with zeros. Each lane sums its block from
  the top row down, then its blocks in order; at last the upper half of the lanes is added to the lower one until one
  is left. A sum of n values has an error below (ROWS + n / BLOCK + 4) * 2**-53, relative to itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LANES = 16
ROWS = 64
BLOCK = LANES * ROWS
"""Values that are summed before they are added to other sums."""

LOWEST = -700.0
"""e**x counts as 0 below it; 2**n is a normal number down to it."""
LOG2_E = 1.0 / math.log(2.0)
LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
"""ln 2 to 32 bits."""
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
"""ln 2 - LN2_HIGH, rounded."""
ROUNDER = 1.5 * 2.0**52
"""Added to a small number, it leaves the nearest integer in the low bits of the mantissa."""
ROUNDER_BITS = 0x4338000000000000
"""The bits of ROUNDER, as an integer."""
EXPONENT_BIAS = 1023
MANTISSA_BITS = 52
COEFFICIENTS = tuple(1.0 / math.factorial(i) for i in range(13))
"""Of 1, r, r**2, ..."""

_AT_ONCE = 8192  # so that NumPy's intermediate results stay in the cache


def exp_sum(logits: NDArray[np.float32], largest: float, scale: float) -> float:
    """The sum of e**((logit - largest) * scale) over logits, shape (n,), none of which is above `largest`."""
    terms = np.empty(len(logits))
    for start in range(0, len(logits), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        terms[here] = exp_of_nonpositive((logits[here].astype(np.float64) - largest) * scale)
    return sum_in_blocks(terms)


def exp_of_nonpositive(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e**x, element by element; x <= 0, or -inf."""
    clamped = np.maximum(x, LOWEST)
    shifted = clamped * LOG2_E + ROUNDER
    n = shifted - ROUNDER
    r = (clamped - n * LN2_HIGH) - n * LN2_LOW
    power = np.full_like(r, COEFFICIENTS[-1])
    for coefficient in COEFFICIENTS[-2::-1]:
        power *= r
        power += coefficient
    scale = ((shifted.view(np.int64) - ROUNDER_BITS + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float64)
    return np.where(x < LOWEST, 0.0, power * scale)


def sum_in_blocks(values: NDArray[np.float64]) -> float:
    """The sum of values, shape (n,), in the order that this file tells."""
    padded = np.zeros(-(-len(values) // BLOCK) * BLOCK)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, ROWS, LANES)
    sums = np.zeros((len(blocks), LANES))
    for row in range(ROWS):
        sums += blocks[:, row]
    total = np.zeros(LANES)
    for each in sums:
        total += each
    while len(total) > 1:
        half = len(total) // 2
        total = total[:half] + total[half:]
    return float(total[0])
