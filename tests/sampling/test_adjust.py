"""The logit bias and the penalties, on logits worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from distributions import INF, KINDS, listed, logits_of, whole
from minfer.errors import ParameterError
from minfer.sampling import Tokens
from minfer.sampling.adjust import add_logit_bias, last_tokens, penalise


def penalised(
    tokens: Tokens,
    history: list[int],
    window: int = -1,
    repetition: float = 1,
    frequency: float = 0,
    presence: float = 0,
) -> list[float]:
    n_vocab = len(tokens)
    out = penalise(
        tokens, history, n_vocab, window=window, repetition=repetition, frequency=frequency, presence=presence
    )
    return logits_of(out, n_vocab)


@pytest.mark.parametrize("of", KINDS)
def test_logit_bias_is_added_and_bans(of: type) -> None:
    tokens = of([1, 2, 3])
    assert logits_of(add_logit_bias(tokens, {2: -INF, 0: 10.5}), 3) == [11.5, 2, -INF]
    assert logits_of(tokens, 3) == [1, 2, 3]  # pure


@pytest.mark.parametrize("of", [listed, whole])
def test_logit_bias_that_bans_everything_is_refused(of: type) -> None:
    with pytest.raises(ParameterError, match=r"bans every token that is left to draw \(1 biases\)"):
        add_logit_bias(of([1, -INF]), {0: -INF})


@pytest.mark.parametrize("of", KINDS)
def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once(of: type) -> None:
    assert penalised(of([4, -4, 0, 4]), [0, 0, 1, 2], repetition=2) == [2, -8, 0, 4]


@pytest.mark.parametrize("of", KINDS)
def test_frequency_penalty_counts_and_presence_penalty_does_not(of: type) -> None:
    history = [0, 1, 0, 0]
    assert penalised(of([5, 5, 5]), history, frequency=0.5) == [3.5, 4.5, 5]
    assert penalised(of([5, 5, 5]), history, presence=0.5) == [4.5, 4.5, 5]


def test_repetition_comes_before_the_other_penalties() -> None:
    assert penalised(listed([4]), [0], repetition=2, frequency=0.5, presence=0.25) == [1.25]


@pytest.mark.parametrize(
    ("window", "expected"),
    [(0, [0, 0, 0]), (1, [0, 0, -1]), (2, [0, -1, -1]), (9, [-1, -1, -1]), (-1, [-1, -1, -1])],
)
def test_the_window_is_the_last_tokens(window: int, expected: list[float]) -> None:
    assert penalised(listed([0, 0, 0]), [0, 1, 2], window=window, presence=1) == expected


def test_an_empty_history_changes_nothing() -> None:
    assert penalised(whole([1, 2]), [], window=64, repetition=2, frequency=1, presence=1) == [1, 2]


@pytest.mark.parametrize("token", [-1, 3])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(ParameterError, match=rf"token {token} .* vocabulary of 3"):
        last_tokens([0, token], -1, 3)
    assert last_tokens([token, 0, 2], 2, 3).tolist() == [0, 2]


def test_a_penalty_that_overflows_is_refused() -> None:
    with pytest.raises(ParameterError, match="repetition_penalty 1e-308 drives the logit of token 1"):
        penalised(listed([1, 100, 3]), [1], repetition=1e-308)


@pytest.mark.parametrize("of", KINDS)
def test_a_banned_token_stays_banned(of: type) -> None:
    assert penalised(of([1, -INF]), [1], repetition=2, frequency=-2, presence=-2) == [1, -INF]


def test_penalties_are_not_rounded_to_float32() -> None:
    assert penalised(whole([1, 2]), [1], presence=0.1) == [1, np.float64(2) - 0.1]
