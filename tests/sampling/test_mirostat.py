"""Mirostat 1 and 2 on distributions worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distributions import INF, KINDS, f32, ids_of, listed, log
from minfer.sampling import Sampler, SamplingParams
from minfer.sampling.mirostat import cut_by_exponent, cut_by_surprise, next_mu, surprise

EIGHTHS = log(1 / 2, 1 / 4, 1 / 8, 1 / 8)
"""Surprises of 1, 2, 3 and 3 bits."""


@pytest.mark.parametrize("of", KINDS)
def test_the_surprise_is_in_bits_of_the_distribution_before_the_cut(of: type) -> None:
    tokens = of(EIGHTHS)
    assert [surprise(tokens, token) for token in range(4)] == pytest.approx([1, 2, 3, 3], rel=1e-6)


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize(("mu", "n_kept"), [(-1, 1), (0.9, 1), (1.1, 1), (2.1, 2), (2.9, 2), (3.1, 4), (99, 4)])
def test_mirostat_2_cuts_by_the_surprise(of: type, mu: float, n_kept: int) -> None:
    assert sorted(ids_of(cut_by_surprise(of(EIGHTHS), mu))) == list(range(n_kept))


def zipf(exponent: float, n: int) -> list[float]:
    return [-exponent * math.log(rank) for rank in range(1, n + 1)]


@pytest.mark.parametrize(
    ("exponent", "mu", "k"),
    [
        # s = 2: k = sqrt(2^mu / (1 - 1/1000)) = 2^(mu / 2) * 1.0005.
        (2.0, 8.0, 16),
        (2.0, 5.0, 5),  # 5.66
        (2.0, -3.0, 1),  # 0.35
        # s = 1.5: k = (0.5 * 2^mu / (1 - 1000^-0.5))^(2/3) = (0.5163 * 64)^(2/3) = 10.30
        (1.5, 6.0, 10),
        # s = 0.5: k = (-0.5 * 2^mu / (1 - 1000^0.5))^2 = (0.016328 * 512)^2 = 69.9
        (0.5, 9.0, 69),
        (0.5, 15.0, 200),  # more than there are
    ],
)
@pytest.mark.parametrize("of", KINDS)
def test_mirostat_1_finds_the_exponent_and_its_k(of: type, exponent: float, mu: float, k: int) -> None:
    kept = cut_by_exponent(of(zipf(exponent, 200)), mu, 1000)
    assert sorted(ids_of(kept)) == list(range(k))


def test_mirostat_1_at_the_limits_of_its_formula() -> None:
    # s = 1: k = 2^mu / log(n_vocab) = 2^5 / log(1000) = 4.63.
    assert ids_of(cut_by_exponent(listed(zipf(1.0, 200)), 5.0, 1000)) == list(range(4))
    two = listed([0, -math.log(2)])  # s is 1 without a rounding: k = 2^mu / log(3)
    assert [len(cut_by_exponent(two, mu, 3)) for mu in (1.1, 1.2)] == [1, 2]  # 1.95 and 2.09
    assert ids_of(cut_by_exponent(listed([1, 1, 1]), 0.0, 3)) == [0, 1, 2]  # s = 0
    assert ids_of(cut_by_exponent(listed([5, -INF]), 9.0, 2)) == [0]
    assert ids_of(cut_by_exponent(listed([3e38, -3e38]), 9.0, 2)) == [0]


def test_mirostat_1_looks_at_the_first_hundred() -> None:
    tail = [-1000.0 - i for i in range(900)]
    head = zipf(2.0, 100)
    assert len(cut_by_exponent(listed([*head, *tail]), 8.0, 1000)) == 16


def test_mu_moves_against_the_error() -> None:
    assert next_mu(10.0, observed=7.0, tau=5.0, eta=0.1) == pytest.approx(9.8)
    assert next_mu(10.0, observed=3.0, tau=5.0, eta=0.1) == pytest.approx(10.2)


@pytest.mark.parametrize("mirostat", [1, 2])
def test_the_mean_surprise_approaches_the_target(mirostat: int) -> None:
    """A Zipf distribution of 1000 tokens has a mean surprise of some 7.5 bits; the text is to have 4."""
    logits = f32(*zipf(1.1, 1000))
    params = SamplingParams(mirostat=mirostat, mirostat_tau=4.0, temperature=1.0, seed=1)
    sampler = Sampler(params, 1000)
    tokens = listed(logits)
    surprises = [surprise(tokens, sampler.sample(logits, ())) for _ in range(600)]
    assert np.mean(surprises[100:]) == pytest.approx(4.0, abs=0.15)
    free = Sampler(SamplingParams(top_k=0, top_p=1, min_p=0, temperature=1, seed=1), 1000)
    assert np.mean([surprise(tokens, free.sample(logits, ())) for _ in range(600)]) > 5.5


def test_the_first_cut_allows_twice_the_target() -> None:
    params = SamplingParams(mirostat=2, mirostat_tau=1.05, mirostat_eta=0.0, temperature=1.0, seed=1)
    sampler = Sampler(params, 4)
    assert {sampler.sample(f32(*EIGHTHS), ()) for _ in range(60)} == {0, 1}
    assert sampler.state().mu == 2.1


def test_the_temperature_comes_before() -> None:
    # At temperature 1/2, the probabilities are 16 : 4 : 1 : 1, and surprises 0.46, 2.46, 4.46 bits.
    params = SamplingParams(mirostat=2, mirostat_tau=1.1, mirostat_eta=0.0, temperature=0.5, seed=1)
    assert {Sampler(params, 4).sample(f32(*EIGHTHS), ()) for _ in range(60)} == {0}
