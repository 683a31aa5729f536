"""The grammar hook, with a toy grammar: a number of digits, then the end."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from distributions import INF, KINDS, f32, logits_of
from minfer.errors import ParameterError
from minfer.sampling import Sampler, SamplingParams
from minfer.sampling.grammar import apply_grammar

N_VOCAB = 12
END = 11
"""Tokens 0 to 9 are digits, 10 is a letter."""


class Digits:
    """Exactly `n` digits, then the end."""

    def __init__(self, n: int) -> None:
        self.n_left = n
        self.seen: list[int] = []

    def mask(self) -> NDArray[np.bool_]:
        allowed = np.zeros(N_VOCAB, np.bool_)
        allowed[: 10 if self.n_left else 0] = True
        allowed[END] = self.n_left == 0
        return allowed

    def accept(self, token: int) -> None:
        assert self.mask()[token]
        self.seen.append(token)
        self.n_left -= 1

    def state(self) -> object:
        return {"n_left": self.n_left}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.n_left = state["n_left"]


LOGITS = f32(*range(N_VOCAB))
"""The end is the likeliest, then the letter, then 9."""


@pytest.mark.parametrize("of", KINDS)
def test_what_is_not_allowed_is_banned(of: type) -> None:
    tokens = of([1, 2, 3])
    assert logits_of(apply_grammar(tokens, np.array([True, False, True]), 3), 3) == [1, -INF, 3]
    assert logits_of(tokens, 3) == [1, 2, 3]  # pure


@pytest.mark.parametrize("of", KINDS)
def test_a_grammar_that_allows_nothing_that_is_left_is_refused(of: type) -> None:
    with pytest.raises(ParameterError, match="allows 1 tokens, none of which is left"):
        apply_grammar(of([1, -INF, 3]), np.array([False, True, False]), 3)


@pytest.mark.parametrize("mask", [np.ones(4, np.bool_), np.ones(3, np.int8), np.ones((1, 3), np.bool_)])
def test_a_mask_of_another_shape_or_type_is_refused(mask: NDArray[np.bool_]) -> None:
    with pytest.raises(ParameterError, match=r"bool of shape \(3,\)"):
        apply_grammar(KINDS[0]([1, 2, 3]), mask, 3)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(temperature=5, seed=3)])
def test_the_sampler_obeys_and_tells_every_token(params: SamplingParams) -> None:
    grammar = Digits(4)
    sampler = Sampler(params, N_VOCAB, grammar=grammar)
    assert "grammar" in sampler.stages
    tokens = [sampler.sample(LOGITS, ()) for _ in range(5)]
    assert all(token <= 9 for token in tokens[:4])
    assert tokens[4] == END
    assert grammar.seen == tokens


def test_the_grammar_comes_before_the_truncations() -> None:
    # Top-k 1 leaves the likeliest token that is allowed, not the likeliest.
    assert Sampler(SamplingParams(top_k=1), N_VOCAB, grammar=Digits(1)).sample(LOGITS, ()) == 9


def test_a_truncation_before_it_may_leave_nothing_that_is_allowed() -> None:
    sampler = Sampler(SamplingParams(top_k=2, samplers=("top_k", "grammar")), N_VOCAB, grammar=Digits(1))
    with pytest.raises(ParameterError, match="no stage that drops tokens may come before it in samplers"):
        sampler.sample(LOGITS, ())


def test_a_bias_and_a_grammar_go_together() -> None:
    params = SamplingParams(temperature=0, logit_bias={3: 50.0, END: 99.0})
    assert Sampler(params, N_VOCAB, grammar=Digits(1)).sample(LOGITS, ()) == 3


def test_mirostat_obeys_a_grammar() -> None:
    sampler = Sampler(SamplingParams(mirostat=2, mirostat_tau=9.0, seed=0), N_VOCAB, grammar=Digits(50))
    assert all(sampler.sample(LOGITS, ()) <= 9 for _ in range(50))


def test_its_state_is_saved_with_the_sampler() -> None:
    first = Sampler(SamplingParams(seed=1), N_VOCAB, grammar=Digits(3))
    first.sample(LOGITS, ())
    second = Sampler(SamplingParams(seed=1), N_VOCAB, grammar=Digits(99))
    second.restore(first.state())
    assert [first.sample(LOGITS, ()) for _ in range(3)] == [second.sample(LOGITS, ()) for _ in range(3)]
    with pytest.raises(ParameterError, match="with a grammar, and this one is without"):
        Sampler(SamplingParams(seed=1), N_VOCAB).restore(first.state())


def test_a_pipeline_without_the_stage_is_refused() -> None:
    with pytest.raises(ParameterError, match="samplers leaves that stage out"):
        Sampler(SamplingParams(samplers=("top_k",)), N_VOCAB, grammar=Digits(1))
