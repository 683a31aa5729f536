"""The fixed order, and what stages do with tokens: the same whether these are listed or a whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributions import INF, KINDS, changed, f32, ids_of, listed, log, logits_of, whole
from minfer.sampling import Candidates, NumpyVocabularyOps, Tokens
from minfer.sampling.candidates import nucleus
from minfer.sampling.whole import whole_vocabulary

LOGITS = st.lists(st.integers(-60, 60).map(lambda x: x / 4) | st.just(-INF), min_size=0, max_size=60)
"""Many ties, and numbers that float32 holds."""


@pytest.mark.parametrize("of", KINDS)
def test_order_is_by_descending_logit_then_by_lower_id(of: type) -> None:
    assert ids_of(of([1, 3, 2, 3, 0]).leading(5)) == [1, 3, 2, 0, 4]


@pytest.mark.parametrize("of", KINDS)
def test_ties_at_the_cut_go_to_the_lower_ids(of: type) -> None:
    assert ids_of(of([0, 5, 0, 0, 5]).leading(3)) == [1, 4, 0]


@pytest.mark.parametrize("of", KINDS)
def test_what_is_banned_is_never_among_the_first(of: type) -> None:
    assert of([-INF, 1, -INF, 2]).leading(3).ids.tolist() == [3, 1]


@pytest.mark.parametrize("n_candidates", [2048, 2049, 5000, 20_011])
@pytest.mark.parametrize("n", [1, 40, 300, 2047])
@pytest.mark.parametrize("n_levels", [1, 7, 1_000_000])
def test_a_prefix_of_many_is_the_prefix_of_a_full_sort(n_candidates: int, n: int, n_levels: int) -> None:
    values = np.random.default_rng(n_candidates + n).integers(0, n_levels, n_candidates).astype(np.float64)
    expected = sorted(range(n_candidates), key=lambda i: (-values[i], i))[:n]
    assert ids_of(listed(values).leading(n)) == expected
    assert ids_of(whole(values).leading(n)) == expected


def test_a_prefix_where_almost_all_are_banned_holds_the_others() -> None:
    values = [-INF] * 100_000
    values[77], values[99_999] = 1.0, 2.0
    assert ids_of(listed(values).leading(40)) == [99_999, 77]
    assert ids_of(whole(values).leading(40)) == [99_999, 77]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(LOGITS, st.integers(1, 70), st.floats(-16, 16), st.lists(st.booleans(), min_size=61, max_size=61))
def test_a_vocabulary_and_a_list_answer_alike(values: list[float], n: int, logit: float, mask: list[bool]) -> None:
    values = [*values, 0.0]
    allowed = np.array(mask[: len(values)])
    allowed[-1] = True
    candidates, n_vocab = listed(values), len(values)
    for tokens in (whole(values), changed(values)):
        assert len(tokens) == n_vocab
        assert tokens.largest() == candidates.largest()
        assert tokens.total() == pytest.approx(candidates.total(), rel=1e-13)
        assert ids_of(tokens.leading(n)) == ids_of(candidates.leading(n))
        for min_keep in (1, n):
            kept, expected = tokens.at_least(logit, min_keep), candidates.at_least(logit, min_keep)
            assert sorted(ids_of(kept)) == sorted(ids_of(expected))
            assert kept.largest() == expected.largest()
            assert ids_of(kept.leading(n)) == ids_of(expected.leading(n))
            assert kept.total() == pytest.approx(expected.total(), rel=1e-13)
        assert sorted(ids_of(tokens)) == ids_of(candidates)
        assert logits_of(tokens, n_vocab) == values
        masked = tokens.masked(allowed)
        assert masked.largest() == candidates.masked(allowed).largest()
        assert sorted(ids_of(masked)) == ids_of(candidates.masked(allowed))
        assert ids_of(masked.leading(n)) == ids_of(candidates.masked(allowed).leading(n))
        assert masked.total() == pytest.approx(candidates.masked(allowed).total(), rel=1e-13)


def test_other_logits_replace_those_before_and_only_those() -> None:
    for of in KINDS:
        before: Tokens = of([1, 2, 3, 4])
        after = before.with_logits(np.array([3, 0]), np.array([0.1, -INF]))
        assert logits_of(after, 4) == [-INF, 2, 3, 0.1]
        assert after.largest() == 3
        assert ids_of(after.leading(4)) == [2, 1, 3]
        assert logits_of(after.with_logits(np.array([0]), np.array([9.0])), 4) == [9, 2, 3, 0.1]
        assert logits_of(before, 4) == [1, 2, 3, 4]  # pure


@settings(max_examples=60, deadline=None, derandomize=True)
@given(LOGITS, st.sampled_from([1e-3, 0.7, 1.0, 3.0, 1e6]), st.integers(1, 70), st.floats(-30, 0))
def test_tempered_a_vocabulary_and_a_list_answer_alike(
    values: list[float], temperature: float, n: int, logit: float
) -> None:
    values = [*values, 0.0]
    candidates = listed(values).tempered(temperature)
    for tokens in (whole(values).tempered(temperature), changed(values).tempered(temperature)):
        assert (tokens.largest(), candidates.largest()) == (0, 0)
        assert logits_of(tokens, len(values)) == logits_of(candidates, len(values))
        assert tokens.total() == pytest.approx(candidates.total(), rel=1e-13)
        assert ids_of(tokens.leading(n)) == ids_of(candidates.leading(n))
        for each in (logit, float(candidates.logits[0]), float(np.nextafter(candidates.logits[0], 1))):
            if each > -INF:
                assert sorted(ids_of(tokens.at_least(each))) == sorted(ids_of(candidates.at_least(each)))
        assert sorted(ids_of(tokens)) == ids_of(candidates)


def test_tempered_twice_or_to_almost_zero() -> None:
    assert logits_of(whole([1, 2, 3]).tempered(0.5).tempered(4.0), 3) == [-1, -0.5, 0]
    assert ids_of(whole([1, 3, 3]).tempered(5e-324)) == [1, 2]
    assert whole([1, 3, 3]).tempered(1e-300).total() == 2


def test_other_logits_after_a_temperature() -> None:
    tokens = whole([1, 2, 3]).tempered(0.5).with_logits(np.array([0]), np.array([1.0]))
    assert logits_of(tokens, 3) == [1, -2, 0]
    assert tokens.total() == pytest.approx(1 + np.exp(-1) + np.exp(-3), rel=1e-14)
    assert ids_of(tokens.leading(2)) == [0, 2]


def test_a_token_that_is_gone_stays_away() -> None:
    kept = Candidates(np.array([7, 2]), np.array([1.0, 2.0]))
    assert kept.logits_of(np.array([2, 3, 9])).tolist() == [2, -INF, -INF]
    assert logits_of(kept.with_logits(np.array([3, 7]), np.array([5.0, 6.0])), 8) == [*[-INF] * 2, 2, *[-INF] * 4, 6]


def test_changed_logits_keep_float64() -> None:
    tokens = whole([1, 1]).with_logits(np.array([1]), np.array([1 + 2.0**-40]))
    assert ids_of(tokens.leading(2)) == [1, 0]
    assert ids_of(tokens.at_least(1 + 2.0**-41)) == [1]


@pytest.mark.parametrize("logit", [1e300, -1e300, 1 + 2.0**-40, 0.1])
def test_a_threshold_between_two_float32_is_not_rounded(logit: float) -> None:
    values = f32(0.1, 1, np.nextafter(np.float32(0.1), np.float32(0)), np.finfo(np.float32).max)
    expected = [i for i, value in enumerate(values.tolist()) if value >= logit]
    # Where none is left, the likeliest is.
    assert ids_of(whole_vocabulary(values, NumpyVocabularyOps()).at_least(logit)) == (expected or [3])
    many = np.concatenate([values, np.full(100, -INF, np.float32)])
    assert ids_of(whole_vocabulary(many, NumpyVocabularyOps()).at_least(logit)) == (expected or [3])


def test_nucleus_of_everything_leaves_out_what_has_no_probability() -> None:
    for of in KINDS:
        assert ids_of(nucleus(of([0, -INF, 0]), 1.0)) == [0, 2]


@pytest.mark.parametrize("of", KINDS)
def test_nucleus_keeps_some_at_least(of: type) -> None:
    tokens = of(log(0.1, 0.6, 0.3))
    assert ids_of(nucleus(tokens, 0.5)) == [1]
    assert ids_of(nucleus(tokens, 0.5, 2)) == [1, 2]
    assert ids_of(nucleus(tokens, 0.95, 2)) == [1, 2, 0]
    assert ids_of(nucleus(tokens, 0.5, 99)) == [1, 2, 0]
