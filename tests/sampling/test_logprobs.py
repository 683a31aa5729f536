from __future__ import annotations

import math

import numpy as np
import pytest

from distributions import INF, f32, log
from minfer.errors import ModelError, ParameterError
from minfer.sampling import TokenLogprobs, token_logprobs


def test_worked_values() -> None:
    got = token_logprobs(f32(*log(0.1, 0.5, 0.15, 0.25)) + np.float32(7), token=2, n_top=2)
    assert (got.token, [token for token, _ in got.top]) == (2, [1, 3])
    assert got.logprob == pytest.approx(math.log(0.15), rel=1e-6)
    assert [logprob for _, logprob in got.top] == pytest.approx(log(0.5, 0.25), rel=1e-6)


def test_the_chosen_token_has_the_same_value_in_both_places() -> None:
    got = token_logprobs(f32(0.3, 0.1, 0.2), token=2, n_top=3)
    assert dict(got.top)[2] == got.logprob
    assert math.fsum(math.exp(logprob) for _, logprob in got.top) == pytest.approx(1, rel=1e-15)


def test_equal_ones_are_in_the_order_of_their_ids() -> None:
    got = token_logprobs(f32(0, 0, 0, 0), token=3, n_top=2)
    assert got == TokenLogprobs(3, -math.log(4), ((0, -math.log(4)), (1, -math.log(4))))


def test_banned_tokens() -> None:
    got = token_logprobs(f32(0, -INF, 0), token=1, n_top=3)
    assert got == TokenLogprobs(1, -INF, ((0, -math.log(2)), (2, -math.log(2))))


def test_without_alternatives() -> None:
    assert token_logprobs(f32(5), token=0, n_top=0) == TokenLogprobs(0, 0.0, ())


@pytest.mark.parametrize(("token", "n_top", "message"), [(3, 1, "token 3"), (-1, 1, "token -1"), (0, 4, "n_top is 4")])
def test_refuses_what_is_out_of_range(token: int, n_top: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        token_logprobs(f32(1, 2, 3), token, n_top)


def test_logits_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(ModelError, match="logit of nan for token 1"):
        token_logprobs(f32(1, math.nan, 3), 0, 1)
