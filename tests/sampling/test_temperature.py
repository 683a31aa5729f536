"""Temperature, dynamic temperature and the draw, on distributions worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distributions import INF, KINDS, ids_of, listed, log
from minfer.sampling.candidates import weights
from minfer.sampling.draw import draw
from minfer.sampling.temperature import apply_temperature, dynamic_temperature


@pytest.mark.parametrize("of", KINDS)
def test_temperature_is_a_power_of_the_probabilities(of: type) -> None:
    out = weights(apply_temperature(of(log(0.5, 0.25, 0.25)), 0.5).leading(3))
    assert out.tolist() == pytest.approx([1, 0.25, 0.25])


def test_extreme_temperatures_are_finite() -> None:
    assert weights(apply_temperature(listed([1, 2, -3e38]), 5e-324).leading(3)).tolist() == [1]
    assert weights(apply_temperature(listed([1, 2, -INF]), 1e308).leading(3)).tolist() == [1, 1]


@pytest.mark.parametrize("of", KINDS)
def test_temperature_zero_leaves_the_likeliest(of: type) -> None:
    assert ids_of(apply_temperature(of([1, 3, 3]), 0)) == [1]


@pytest.mark.parametrize("of", KINDS)
def test_dynamic_temperature_follows_the_entropy(of: type) -> None:
    # Entropy of (1/2, 1/4, 1/8, 1/8): 1.75 bits of the 2 that four equal ones have.
    tokens = of(log(1 / 2, 1 / 4, 1 / 8, 1 / 8))
    assert dynamic_temperature(tokens, 1.0, 0.5, 1.0) == pytest.approx(0.5 + 0.875)
    assert dynamic_temperature(tokens, 1.0, 0.5, 2.0) == pytest.approx(0.5 + 0.875**2)
    assert dynamic_temperature(of([3, 3, 3]), 0.8, 0.3, 1.0) == pytest.approx(1.1)
    assert dynamic_temperature(of([3000, 0, 0]), 0.8, 0.3, 1.0) == pytest.approx(0.5)


def test_dynamic_temperature_counts_no_banned_token() -> None:
    assert dynamic_temperature(listed([3, -INF, 3]), 1.0, 0.5, 1.0) == pytest.approx(1.5)
    assert dynamic_temperature(listed([3, -INF]), 1.0, 0.5, 1.0) == 1.0


def test_dynamic_temperature_stays_in_its_range() -> None:
    for values in ([0.1] * 3, [0.1] * 7, [1e5, 0], [3e38, -3e38]):
        assert 0.0 <= dynamic_temperature(listed(values), 0.5, 0.5, 0.3) <= 1.0


# The draw


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 3), (0.249, 3), (0.26, 2), (0.49, 2), (0.51, 0), (0.74, 0), (0.76, 1), (1 - 2**-53, 1)],
)
def test_the_draw_inverts_the_cumulative_distribution(of: type, uniform: float, token: int) -> None:
    # In order: token 1, then 0, 2 and 3, each with probability 1/4; the greatest uniforms draw the first.
    assert draw(of([2, 2.000001, 2, 2]), uniform) == token


def test_the_border_between_two_tokens_belongs_to_the_likelier() -> None:
    assert draw(listed([0, 0]), 0.5) == 0
    assert draw(listed([0, 0]), 0.5 - 2**-53) == 1


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_banned_token_is_never_drawn(of: type, uniform: float) -> None:
    assert draw(of([-INF, 3, -INF]), uniform) == 1


def test_a_banned_token_is_not_drawn_for_a_rounding_error_either() -> None:
    n_differing = 0
    for seed in range(20):
        values = np.random.default_rng(seed).standard_normal(3000)
        relative = np.exp(values - values.max())
        n_differing += bool(relative.sum() > np.cumsum(np.sort(relative)[::-1])[-1])  # equal, but for rounding
        assert draw(listed([*values.tolist(), -INF]), 0.0) == int(np.argmin(values))
    assert n_differing > 0


def test_a_token_below_the_smallest_number_is_never_drawn() -> None:
    assert math.exp(-800) == 0
    assert draw(listed([0, -800]), 0.0) == 0
