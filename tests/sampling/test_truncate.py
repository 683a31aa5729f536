"""Each truncation on distributions worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributions import INF, KINDS, f32, ids_of, listed, log, logits_of, whole
from minfer.sampling.candidates import weights
from minfer.sampling.temperature import apply_temperature
from minfer.sampling.truncate import (
    exclude_top_choices,
    keep_min_p,
    keep_top_k,
    keep_top_n_sigma,
    keep_top_p,
    keep_typical,
    standard_deviation,
)

# Top-k


@pytest.mark.parametrize("of", KINDS)
def test_top_k(of: type) -> None:
    assert ids_of(keep_top_k(of([1, 3, 2]), 2)) == [1, 2]


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize("k", [3, 4, 1000])
def test_top_k_of_the_vocabulary_or_more_keeps_all(of: type, k: int) -> None:
    assert ids_of(keep_top_k(of([1, 3, 2]), k)) == [1, 2, 0]


# Typical-p


@pytest.mark.parametrize("of", KINDS)
def test_typical_p(of: type) -> None:
    # Surprises in bits: 1, 2, 3, 3; entropy 0.5 + 0.5 + 0.375 + 0.375 = 1.75; distances 0.75, 0.25, 1.25, 1.25.
    tokens = of(log(1 / 2, 1 / 4, 1 / 8, 1 / 8))
    assert ids_of(keep_typical(tokens, 0.2)) == [1]
    assert ids_of(keep_typical(tokens, 0.3)) == [1, 0]
    assert ids_of(keep_typical(tokens, 0.7)) == [1, 0]
    assert ids_of(keep_typical(tokens, 0.8)) == [1, 0, 2]
    assert ids_of(keep_typical(tokens, 0.9)) == [1, 0, 2, 3]


@pytest.mark.parametrize("of", KINDS)
def test_typical_p_may_drop_the_likeliest(of: type) -> None:
    # Nine tokens of 0.06 hold 0.54: the entropy is 0.46 * 0.777 + 0.54 * 2.813 = 1.876 nats, and theirs are nearer.
    tokens = of(log(0.46, *[0.06] * 9))
    assert 0 not in ids_of(keep_typical(tokens, 0.5))
    assert ids_of(keep_typical(tokens, 0.1)) == [1, 2]


def test_typical_p_keeps_some_at_least_and_leaves_out_what_is_banned() -> None:
    tokens = listed(log(1 / 2, 1 / 4, 1 / 8, 1 / 8))
    assert ids_of(keep_typical(tokens, 0.2, 3)) == [1, 0, 2]
    assert ids_of(keep_typical(listed([0, -INF, 0]), 1 - 2**-53)) == [0, 2]


def test_typical_p_of_equals_takes_the_lower_ids() -> None:
    assert ids_of(keep_typical(listed([7, 7, 7, 7]), 0.5)) == [0, 1]


# Top-p


@pytest.mark.parametrize("of", KINDS)
def test_top_p_keeps_the_one_that_reaches_it(of: type) -> None:
    tokens = of(log(0.1, 0.5, 0.3, 0.1))
    assert ids_of(keep_top_p(tokens, 0.4)) == [1]
    assert ids_of(keep_top_p(tokens, 0.6)) == [1, 2]
    assert ids_of(keep_top_p(tokens, 0.85)) == [1, 2, 0]
    assert ids_of(keep_top_p(tokens, 0.95)) == [1, 2, 0, 3]
    assert ids_of(keep_top_p(tokens, 0.4, 3)) == [1, 2, 0]


@pytest.mark.parametrize("of", KINDS)
@pytest.mark.parametrize(("p", "n_kept"), [(0.25, 1), (0.250001, 2), (0.5, 2), (0.75, 3), (0.750001, 4)])
def test_top_p_exactly_at_a_border_keeps_no_more(of: type, p: float, n_kept: int) -> None:
    assert ids_of(keep_top_p(of([7, 7, 7, 7]), p)) == list(range(n_kept))


def test_top_p_of_almost_one_keeps_all_of_a_flat_distribution() -> None:
    assert len(keep_top_p(listed([0.1] * 5000), math.nextafter(1, 0))) == 5000


def test_top_p_of_a_large_vocabulary_equals_a_full_sort() -> None:
    values = np.random.default_rng(5).standard_normal(30_000).astype(np.float32).astype(np.float64)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    probabilities = np.exp(values[order]) / np.exp(values).sum()
    n_kept = int(np.searchsorted(np.cumsum(probabilities), 0.6)) + 1
    assert n_kept > 1024  # so that the prefix has to grow
    assert ids_of(keep_top_p(listed(values), 0.6)) == order[:n_kept]
    assert ids_of(keep_top_p(whole(values), 0.6)) == order[:n_kept]


# Min-p


@pytest.mark.parametrize("of", KINDS)
def test_min_p_is_relative_to_the_likeliest(of: type) -> None:
    tokens = of(log(0.4, 0.05, 0.21, 0.3, 0.04))
    assert sorted(ids_of(keep_min_p(tokens, 0.5))) == [0, 2, 3]
    assert sorted(ids_of(keep_min_p(tokens, 0.11))) == [0, 1, 2, 3]
    assert sorted(ids_of(keep_min_p(tokens, 0.09))) == [0, 1, 2, 3, 4]
    assert ids_of(keep_min_p(tokens, 0.9, 2)) == [0, 3]


@pytest.mark.parametrize("of", KINDS)
def test_min_p_of_one_keeps_the_likeliest_and_its_equals(of: type) -> None:
    assert sorted(ids_of(keep_min_p(of([1, 3, 2, 3]), 1))) == [1, 3]


# Top-n-sigma


@pytest.mark.parametrize("of", KINDS)
def test_top_n_sigma(of: type) -> None:
    # Mean 2, squared deviations 4 + 4 + 4 + 4: sigma 2. The largest is 4.
    logits = [0, 4, 0, 4]
    assert standard_deviation(f32(*logits)) == 2
    tokens = of([3.5, 4, 2, 0])
    assert sorted(ids_of(keep_top_n_sigma(tokens, 0.2, 2.0))) == [1]
    assert sorted(ids_of(keep_top_n_sigma(tokens, 0.25, 2.0))) == [0, 1]
    assert sorted(ids_of(keep_top_n_sigma(tokens, 1.0, 2.0))) == [0, 1, 2]
    assert sorted(ids_of(keep_top_n_sigma(tokens, 2.0, 2.0))) == [0, 1, 2, 3]
    assert ids_of(keep_top_n_sigma(tokens, 0.1, 2.0, 3)) == [1, 0, 2]


def test_sigma_leaves_out_what_is_banned_and_sums_wide() -> None:
    assert standard_deviation(f32(-INF, 0, 4, -INF, 0, 4)) == 2
    assert standard_deviation(f32(3e38, -3e38)) == pytest.approx(3e38)
    assert standard_deviation(f32(5)) == 0


# XTC


@pytest.mark.parametrize("of", KINDS)
def test_xtc_drops_all_that_reach_the_threshold_but_the_last(of: type) -> None:
    tokens = of(log(0.05, 0.4, 0.25, 0.2, 0.1))
    assert sorted(ids_of(exclude_top_choices(tokens, 0.15))) == [0, 3, 4]
    assert sorted(ids_of(exclude_top_choices(tokens, 0.22))) == [0, 2, 3, 4]
    assert sorted(ids_of(exclude_top_choices(tokens, 0.3))) == [0, 1, 2, 3, 4]  # one alone is no choice
    assert sorted(ids_of(exclude_top_choices(tokens, 0.45))) == [0, 1, 2, 3, 4]
    assert ids_of(exclude_top_choices(tokens, 0.01)) == [0]
    assert ids_of(exclude_top_choices(tokens, 1e-300)) == [0]


@pytest.mark.parametrize("of", KINDS)
def test_xtc_at_a_border_and_among_equals(of: type) -> None:
    assert sorted(ids_of(exclude_top_choices(of([3, 3, 3, 3]), 0.25))) == [3]
    assert sorted(ids_of(exclude_top_choices(of([3, 3, 3, 3]), 0.2500001))) == [0, 1, 2, 3]


def test_xtc_leaves_some_at_least() -> None:
    tokens = listed([*log(0.05, 0.4, 0.25, 0.2, 0.1), -INF])
    assert sorted(ids_of(exclude_top_choices(tokens, 0.15, 3))) == [0, 3, 4]
    assert exclude_top_choices(tokens, 0.15, 4) is tokens


def test_xtc_leaves_the_other_logits_alone() -> None:
    assert logits_of(exclude_top_choices(listed([1, 1, 0]), 0.3), 3) == [-INF, 1, 0]


# All


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-50, 50, width=32) | st.just(-INF), min_size=1, max_size=80),
    k=st.integers(1, 100),
    p=st.floats(1e-9, 1),
    n=st.floats(0, 9),
    temperature=st.floats(1e-6, 1e6),
)
def test_the_likeliest_survives_and_the_order_stays(
    values: list[float], k: int, p: float, n: float, temperature: float
) -> None:
    values = [*values, 0.0]  # one at least is finite
    for of in KINDS:
        tokens = of(values)
        order = ids_of(tokens.leading(len(values)))
        for kept in (
            keep_top_k(tokens, k),
            keep_top_p(tokens, p),
            keep_min_p(tokens, p),
            keep_top_n_sigma(tokens, n, 1.5),
            apply_temperature(tokens, temperature),
        ):
            in_order = ids_of(kept.leading(len(values)))
            assert in_order[0] == order[0]
            assert set(in_order) <= set(order)
            relative = weights(kept.leading(len(values)))
            assert relative[0] == 1
            assert (np.diff(relative) <= 0).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-50, 50, width=32) | st.just(-INF), min_size=1, max_size=80),
    p=st.floats(1e-9, 1),
    min_keep=st.integers(1, 90),
)
def test_no_cut_leaves_fewer_than_min_keep(values: list[float], p: float, min_keep: int) -> None:
    values = [*values, 0.0]
    least = min(min_keep, sum(value > -INF for value in values))
    for of in KINDS:
        tokens = of(values)
        for kept in (
            keep_top_p(tokens, p, min_keep),
            keep_min_p(tokens, p, min_keep),
            keep_typical(tokens, p, min_keep),
            keep_top_n_sigma(tokens, p, 1.5, min_keep),
            exclude_top_choices(tokens, p, min_keep),
        ):
            assert len(ids_of(kept)) >= least
