"""Each stage on distributions worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.errors import ParameterError
from minfer.sampling import Candidates
from minfer.sampling.adjust import add_logit_bias, penalise
from minfer.sampling.candidates import leading, nucleus, weights
from minfer.sampling.draw import apply_temperature, draw
from minfer.sampling.truncate import keep_min_p, keep_top_k, keep_top_p

INF = math.inf


def of(logits: Sequence[float]) -> Candidates:
    return Candidates(np.arange(len(logits), dtype=np.int64), np.array(logits, dtype=np.float64))


def of_probabilities(*probabilities: float) -> Candidates:
    return of([math.log(p) for p in probabilities])


def ids(candidates: Candidates) -> list[int]:
    return candidates.ids.tolist()


def logits(candidates: Candidates) -> list[float]:
    return candidates.logits.tolist()


# The fixed order


def test_order_is_by_descending_logit_then_by_lower_id() -> None:
    assert ids(leading(of([1, 3, 2, 3, -INF]), 5)) == [1, 3, 2, 0, 4]


def test_ties_at_the_cut_go_to_the_lower_ids() -> None:
    assert ids(leading(of([0, 5, 0, 0, 5]), 3)) == [1, 4, 0]


@pytest.mark.parametrize("n_candidates", [2048, 2049, 5000, 20_011])
@pytest.mark.parametrize("n", [1, 40, 300, 2047])
@pytest.mark.parametrize("n_levels", [1, 7, 1_000_000])
def test_a_prefix_of_many_is_the_prefix_of_a_full_sort(n_candidates: int, n: int, n_levels: int) -> None:
    generator = np.random.default_rng(n_candidates + n)
    values = generator.integers(0, n_levels, n_candidates).astype(np.float64)
    expected = sorted(range(n_candidates), key=lambda i: (-values[i], i))[:n]
    assert ids(leading(of(values.tolist()), n)) == expected


def test_a_prefix_where_almost_all_are_banned_holds_the_others() -> None:
    values = [-INF] * 100_000
    values[77], values[99_999] = 1.0, 2.0
    assert ids(leading(of(values), 40)) == [99_999, 77]


# Logit bias


def test_logit_bias_is_added_and_bans() -> None:
    candidates = of([1, 2, 3])
    assert logits(add_logit_bias(candidates, {0: 10.5, 2: -INF})) == [11.5, 2, -INF]
    assert logits(candidates) == [1, 2, 3]  # pure


def test_logit_bias_that_bans_everything_is_refused() -> None:
    with pytest.raises(ParameterError, match="bans every token"):
        add_logit_bias(of([1, -INF]), {0: -INF})


# Penalties


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    out = penalise(of([4, -4, 0, 4]), [0, 0, 1, 2], window=-1, repetition=2, frequency=0, presence=0)
    assert logits(out) == [2, -8, 0, 4]


def test_frequency_penalty_counts_and_presence_penalty_does_not() -> None:
    history = [0, 1, 0, 0]
    assert logits(penalise(of([5, 5, 5]), history, window=-1, repetition=1, frequency=0.5, presence=0)) == [3.5, 4.5, 5]
    assert logits(penalise(of([5, 5, 5]), history, window=-1, repetition=1, frequency=0, presence=0.5)) == [4.5, 4.5, 5]


def test_repetition_comes_before_the_other_penalties() -> None:
    assert logits(penalise(of([4]), [0], window=-1, repetition=2, frequency=0.5, presence=0.25)) == [1.25]


@pytest.mark.parametrize(
    ("window", "expected"), [(1, [0, 0, -1]), (2, [0, -1, -1]), (9, [-1, -1, -1]), (-1, [-1, -1, -1])]
)
def test_the_window_is_the_last_tokens(window: int, expected: list[float]) -> None:
    out = penalise(of([0, 0, 0]), [0, 1, 2], window=window, repetition=1, frequency=0, presence=1)
    assert logits(out) == expected


def test_an_empty_history_changes_nothing() -> None:
    assert logits(penalise(of([1, 2]), [], window=64, repetition=2, frequency=1, presence=1)) == [1, 2]


@pytest.mark.parametrize("token", [-1, 3])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ParameterError, match=rf"token {token} .* vocabulary of 3"):
        penalise(of([1, 2, 3]), [0, token], window=-1, repetition=2, frequency=0, presence=0)


def test_a_penalty_that_overflows_is_refused() -> None:
    with pytest.raises(ParameterError, match="repetition_penalty 1e-308 drives the logit of token 1"):
        penalise(of([1, 100, 3]), [1], window=-1, repetition=1e-308, frequency=0, presence=0)


def test_a_banned_token_stays_banned() -> None:
    assert logits(penalise(of([1, -INF]), [1], window=-1, repetition=2, frequency=-2, presence=-2)) == [1, -INF]


# Truncations


def test_top_k() -> None:
    assert ids(keep_top_k(of([1, 3, 2]), 2)) == [1, 2]


@pytest.mark.parametrize("k", [3, 4, 1000])
def test_top_k_of_the_vocabulary_or_more_keeps_all(k: int) -> None:
    assert ids(keep_top_k(of([1, 3, 2]), k)) == [1, 2, 0]


def test_top_p_keeps_the_one_that_reaches_it() -> None:
    candidates = of_probabilities(0.1, 0.5, 0.3, 0.1)
    assert ids(keep_top_p(candidates, 0.4)) == [1]
    assert ids(keep_top_p(candidates, 0.6)) == [1, 2]
    assert ids(keep_top_p(candidates, 0.85)) == [1, 2, 0]
    assert ids(keep_top_p(candidates, 0.95)) == [1, 2, 0, 3]


@pytest.mark.parametrize(("p", "n_kept"), [(0.25, 1), (0.250001, 2), (0.5, 2), (0.75, 3), (0.750001, 4)])
def test_top_p_exactly_at_a_border_keeps_no_more(p: float, n_kept: int) -> None:
    assert ids(keep_top_p(of([7, 7, 7, 7]), p)) == list(range(n_kept))


def test_top_p_of_almost_one_keeps_all_of_a_flat_distribution() -> None:
    assert len(keep_top_p(of([0.1] * 5000), math.nextafter(1, 0))) == 5000


def test_top_p_of_a_large_vocabulary_equals_a_full_sort() -> None:
    values = np.random.default_rng(5).standard_normal(30_000)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    probabilities = np.exp(values[order]) / np.exp(values).sum()
    n_kept = int(np.searchsorted(np.cumsum(probabilities), 0.6)) + 1
    assert n_kept > 1024  # so that the prefix has to grow
    assert ids(keep_top_p(of(values.tolist()), 0.6)) == order[:n_kept]


def test_min_p_is_relative_to_the_likeliest() -> None:
    candidates = of_probabilities(0.4, 0.05, 0.21, 0.3, 0.04)
    assert ids(keep_min_p(candidates, 0.5)) == [0, 2, 3]
    assert ids(keep_min_p(candidates, 0.11)) == [0, 1, 2, 3]
    assert ids(keep_min_p(candidates, 0.09)) == [0, 1, 2, 3, 4]


def test_min_p_of_one_keeps_the_likeliest_and_its_equals() -> None:
    assert ids(keep_min_p(of([1, 3, 2, 3]), 1)) == [1, 3]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-50, 50) | st.just(-INF), min_size=1, max_size=80),
    k=st.integers(1, 100),
    p=st.floats(1e-9, 1),
    temperature=st.floats(1e-6, 1e6),
)
def test_the_likeliest_survives_every_stage(values: list[float], k: int, p: float, temperature: float) -> None:
    candidates = of([*values, 0.0])  # one at least is finite
    best = int(np.argmax(candidates.logits))
    truncated = (keep_top_k(candidates, k), keep_top_p(candidates, p), keep_min_p(candidates, p))
    for kept in (*truncated, apply_temperature(candidates, temperature)):
        assert best in ids(kept)
        assert 1 <= len(kept) <= len(candidates)
        assert ids(leading(kept, 1)) == [best]


# Temperature and draw


def test_temperature_is_a_power_of_the_probabilities() -> None:
    out = weights(apply_temperature(of_probabilities(0.5, 0.25, 0.25), 0.5))
    assert out.tolist() == pytest.approx([1, 0.25, 0.25])


def test_extreme_temperatures_are_finite() -> None:
    assert weights(apply_temperature(of([1, 2, -3e38]), 5e-324)).tolist() == [0, 1, 0]
    assert weights(apply_temperature(of([1, 2, -INF]), 1e308)).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("uniform", "token"),
    [(0.0, 3), (0.249, 3), (0.26, 2), (0.49, 2), (0.51, 0), (0.74, 0), (0.76, 1), (1 - 2**-53, 1)],
)
def test_the_draw_inverts_the_cumulative_distribution(uniform: float, token: int) -> None:
    # In order: token 1, then 0, 2 and 3, each with probability 1/4; the greatest uniforms draw the first.
    assert draw(of([2, 2.0000001, 2, 2]), uniform) == token


def test_the_border_between_two_tokens_belongs_to_the_likelier() -> None:
    assert draw(of([0, 0]), 0.5) == 0
    assert draw(of([0, 0]), 0.5 - 2**-53) == 1


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_a_banned_token_is_never_drawn(uniform: float) -> None:
    assert draw(of([-INF, 3, -INF]), uniform) == 1


def test_a_banned_token_is_not_drawn_for_a_rounding_error_either() -> None:
    n_differing = 0
    for seed in range(20):
        values = np.random.default_rng(seed).standard_normal(3000)
        relative = np.exp(values - values.max())
        n_differing += bool(relative.sum() > np.cumsum(np.sort(relative)[::-1])[-1])  # equal, but for rounding
        assert draw(of([*values.tolist(), -INF]), 0.0) == int(np.argmin(values))
    assert n_differing > 0


def test_nucleus_of_everything_leaves_out_what_has_no_probability() -> None:
    assert ids(nucleus(of([0, -INF, 0]), 1.0)) == [0, 2]
