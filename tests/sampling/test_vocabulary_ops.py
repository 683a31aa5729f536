"""The passes over the vocabulary by NumPy, and the exponentials that every implementation follows."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from distributions import INF, f32
from minfer.errors import ModelError
from minfer.sampling import NumpyVocabularyOps
from minfer.sampling.exponentials import (
    BLOCK,
    LN2_HIGH,
    LN2_LOW,
    ROUNDER,
    ROUNDER_BITS,
    ROWS,
    exp_of_nonpositive,
    sum_in_blocks,
)

OPS = NumpyVocabularyOps()


def test_arg_max_is_the_lowest_id_of_equals() -> None:
    assert OPS.arg_max(f32(1, 7, 7, -INF)) == 1
    assert OPS.arg_max(f32(-INF, -3e38)) == 1


@pytest.mark.parametrize("n_vocab", [1, 5, 2500, 40_000])
def test_top_k_is_the_beginning_of_a_full_sort(n_vocab: int) -> None:
    logits = np.random.default_rng(1).integers(-50, 50, n_vocab).astype(np.float32)
    logits[logits == -50] = -INF
    order = [i for i in sorted(range(n_vocab), key=lambda i: (-logits[i], i)) if logits[i] > -INF]
    for k in (1, 2, 40, 700, n_vocab):
        assert OPS.top_k(logits, k).tolist() == order[:k]
    assert OPS.top_k(logits, 1).dtype == np.int64


def test_top_k_of_nothing_but_banned_tokens_is_empty() -> None:
    assert OPS.top_k(f32(-INF, -INF), 1).tolist() == []


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    for refused in (OPS.arg_max, lambda x: OPS.top_k(x, 1), lambda x: OPS.exp_sum(x, 5.0)):
        with pytest.raises(ModelError, match=rf"logit of {bad} for token 1 \(1 of 3"):
            refused(f32(5, bad, -INF))
    with pytest.raises(ModelError, match="all -inf"):
        OPS.arg_max(f32(-INF, -INF))


# The exponentials


def test_constants() -> None:
    ln2 = Fraction("0.693147180559945309417232121458176568")
    assert Fraction(LN2_HIGH).denominator <= 2**33  # times a whole number of up to 20 bits, it is exact
    assert abs(Fraction(LN2_HIGH) + Fraction(LN2_LOW) - ln2) < Fraction(1, 2**85)
    assert np.float64(ROUNDER).view(np.int64) == ROUNDER_BITS


def test_every_exponential_is_within_four_half_units() -> None:
    x = -np.concatenate(
        [np.random.default_rng(0).exponential(5, 4000), np.linspace(0, 700, 3001), np.logspace(-300, 0, 301)]
    )
    exact = np.array([math.exp(each) for each in x.tolist()])  # within one unit
    relative = np.abs(exp_of_nonpositive(x) / exact - 1)
    assert relative.max() <= (4 + 2) * 2.0**-53
    assert exp_of_nonpositive(np.array([0.0, -0.0])).tolist() == [1, 1]
    assert exp_of_nonpositive(np.array([-700.0]))[0] > 0
    assert exp_of_nonpositive(np.array([-700.1, -1e300, -INF])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("n_values", [0, 1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 151_936])
def test_the_sum_is_as_exact_as_its_order_promises(n_values: int) -> None:
    values = np.random.default_rng(n_values).exponential(1, n_values) ** 4
    exact = math.fsum(values)
    bound = (ROWS + n_values / BLOCK + 4) * 2.0**-53
    assert abs(sum_in_blocks(values) - exact) <= bound * exact


def test_the_order_of_the_sum() -> None:
    """One is lost beside 2**53, but not two of them: lanes, rows and blocks show in the result."""
    big, ones = 2.0**53, np.zeros(2 * BLOCK)
    ones[[0, 16, 32]] = big, 1, 1  # one lane: one after the other
    assert sum_in_blocks(ones) == big
    ones = np.zeros(2 * BLOCK)
    ones[[0, 1, 9]] = big, 1, 1  # lanes 1 and 9 meet first
    assert sum_in_blocks(ones) == big + 2
    ones = np.zeros(3 * BLOCK)
    ones[[0, BLOCK, BLOCK + 16]] = big, 1, 1  # the second block is summed by itself
    assert sum_in_blocks(ones) == big + 2
    ones = np.zeros(3 * BLOCK)
    ones[[0, BLOCK, 2 * BLOCK]] = big, 1, 1  # blocks are added one after the other
    assert sum_in_blocks(ones) == big


def test_exp_sum_is_relative_to_the_number_given() -> None:
    assert OPS.exp_sum(f32(1, 1, -INF), 1.0) == 2
    assert OPS.exp_sum(f32(1, 1), 2.0) == pytest.approx(2 / math.e, rel=1e-15)
