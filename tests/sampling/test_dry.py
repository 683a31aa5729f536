"""DRY on histories worked out by hand, against a slow and obvious definition, and its sequence breakers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributions import INF, KINDS, listed, logits_of
from minfer.errors import ParameterError
from minfer.sampling import SequenceBreakers, find_breakers
from minfer.sampling.dry import penalise_repetition, repetitions, tokens_since_breaker

NONE = SequenceBreakers()
A, B, C, D, E = range(5)


def dry(
    history: list[int],
    breakers: SequenceBreakers = NONE,
    multiplier: float = 1.0,
    base: float = 2.0,
    allowed_length: int = 2,
    of: type = listed,
) -> list[float]:
    """What token 0 to 4 lose."""
    out = penalise_repetition(
        of([0.0] * 5),
        np.array(history, np.int64),
        breakers,
        multiplier=multiplier,
        base=base,
        allowed_length=allowed_length,
    )
    return [-logit + 0.0 for logit in logits_of(out, 5)]


@pytest.mark.parametrize("of", KINDS)
def test_worked_values(of: type) -> None:
    # "a b" has been followed by c. Of "a b" repeated, two tokens match: multiplier * base ** (2 - 2).
    assert dry([A, B, C, A, B], of=of) == [0, 0, 1, 0, 0]
    # Three match: one more than allowed.
    assert dry([A, B, C, D, A, B, C], of=of) == [0, 0, 0, 2, 0]
    assert dry([A, B, C, D, A, B, C], multiplier=0.5, base=3.0, of=of) == [0, 0, 0, 1.5, 0]
    # One matches: too short; with allowed_length 1, it counts.
    assert dry([A, B, C, B], of=of) == [0] * 5
    assert dry([A, B, C, B], allowed_length=1, of=of) == [0, 0, 1, 0, 0]


def test_the_longest_repetition_counts_and_every_follower_loses() -> None:
    # "b" and "a b" are followed by c, "d a b" by e.
    assert dry([A, B, C, D, A, B, E, C, D, A, B], allowed_length=1) == [0, 0, 2, 0, 8]


def test_a_repetition_may_overlap_itself() -> None:
    assert dry([A, A, A, A]) == [2, 0, 0, 0, 0]


@pytest.mark.parametrize("history", [[], [A], [A, B, C]])
def test_without_a_repetition_nothing_changes(history: list[int]) -> None:
    assert dry(history, allowed_length=1) == [0] * 5


def test_a_repetition_does_not_reach_across_a_breaker() -> None:
    history = [A, B, C, D, A, B, C]
    assert dry(history, SequenceBreakers(frozenset({A}))) == [0, 0, 0, 1, 0]
    assert dry(history, SequenceBreakers(frozenset({B}))) == [0] * 5
    assert dry(history, SequenceBreakers(frozenset({B})), allowed_length=1) == [0, 0, 0, 1, 0]
    assert dry(history, SequenceBreakers(frozenset({C})), allowed_length=1) == [0] * 5


def test_a_breaker_of_several_tokens() -> None:
    history = [E, A, B, C, D, E, A, B, C]
    assert dry(history) == [0, 0, 0, 4, 0]
    assert dry(history, SequenceBreakers(longer=frozenset({(E, A)}))) == [0, 0, 0, 1, 0]
    assert dry(history, SequenceBreakers(longer=frozenset({(A, E)}))) == [0, 0, 0, 4, 0]
    assert dry(history, SequenceBreakers(longer=frozenset({(D, E, A), (B, C)})), allowed_length=1) == [0] * 5
    # With base 1, no more than the allowed length is searched, but a breaker that ends there is seen as a whole.
    assert dry([D, E, A, B, C, D, E, A, B], base=1.0) == [0, 0, 1, 0, 0]
    assert dry([D, E, A, B, C, D, E, A, B], SequenceBreakers(longer=frozenset({(D, E, A)})), base=1.0) == [0] * 5


def test_a_breaker_is_never_penalised_itself() -> None:
    assert dry([A, B, C, A, B], SequenceBreakers(frozenset({C}))) == [0] * 5


def test_what_follows_the_last_breaker() -> None:
    breakers = SequenceBreakers(frozenset({7}), frozenset({(8, 9), (3, 4, 5)}))
    assert tokens_since_breaker([1, 7, 2, 3], breakers) == 2
    assert tokens_since_breaker([1, 2, 7], breakers) == 0
    assert tokens_since_breaker([7, 8, 9, 1], breakers) == 1
    assert tokens_since_breaker([9, 8, 3, 4, 5, 1, 1], breakers) == 2
    assert tokens_since_breaker([4, 5, 1], breakers) == 3


def test_a_long_repetition_is_capped_and_stays_finite() -> None:
    loop = [A, B, C] * 300
    assert dry(loop)[A] == 2.0**127  # the largest power of two below the largest float32
    assert dry([A, B, C] * 30)[A] == 2.0 ** (87 - 2)
    assert dry(loop, base=1.0, multiplier=3.0)[A] == 3.0


def test_a_multiplier_that_overflows_is_refused() -> None:
    with pytest.raises(ParameterError, match="dry_multiplier 1e\\+300 drives the logit of token 0 to -inf"):
        dry([A, B, C] * 300, multiplier=1e300)


def test_a_banned_token_stays_banned() -> None:
    out = penalise_repetition(
        listed([0.0, -INF]), np.array([1, 1, 1, 1]), NONE, multiplier=1.0, base=2.0, allowed_length=1
    )
    assert logits_of(out, 2) == [0, -INF]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2), max_size=90), st.integers(1, 80), st.sets(st.integers(1, 2), max_size=1))
def test_against_the_definition(history: list[int], longest: int, single: set[int]) -> None:
    followers, lengths = repetitions(np.array(history, np.int64), SequenceBreakers(frozenset(single)), longest)
    expected: dict[int, int] = {}
    for m in range(1, min(longest, len(history) - 1) + 1):
        ending = history[-m:]
        if single & set(ending):
            break
        for start in range(len(history) - m):
            if history[start : start + m] == ending:
                expected[history[start + m]] = m
    assert dict(zip(followers.tolist(), lengths.tolist(), strict=True)) == expected


def test_breakers_are_found_in_the_texts_of_tokens() -> None:
    texts = ["a", "\n", "x\n\n", "User", ":", "b", "<nl>"]
    encoded = {"\n": [1], "User:": [3, 4], "nl": [6]}
    found = find_breakers(["\n", "User:", "nl"], texts, encoded.__getitem__)
    assert found == SequenceBreakers(frozenset({1, 2, 6}), frozenset({(3, 4)}))


def test_a_breaker_that_only_its_encoding_knows() -> None:
    assert find_breakers(["é"], ["<0xC3>", "<0xA9>", "▁"], lambda _: [0, 1]).longer == frozenset({(0, 1)})
    assert find_breakers([" "], ["<0xC3>", "<0xA9>", "▁"], lambda _: [2]).single == frozenset({2})
