from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from minfer.errors import ModelError, ParameterError
from minfer.sampling import SAMPLERS, Sampler, SamplerState, SamplingParams, SequenceBreakers

INF = math.inf
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def run(params: SamplingParams, logits: NDArray[np.float32], n_tokens: int) -> list[int]:
    sampler = Sampler(params, len(logits))
    return [sampler.sample(logits, ()) for _ in range(n_tokens)]


# The pipeline


def test_the_order_of_the_pipeline() -> None:
    assert SAMPLERS == (
        "logit_bias",
        "penalties",
        "dry",
        "grammar",
        "top_k",
        "typical_p",
        "top_p",
        "min_p",
        "top_n_sigma",
        "xtc",
        "temperature",
    )


def test_every_stage_runs_when_its_parameter_is_set() -> None:
    params = SamplingParams(
        logit_bias={0: 1.0},
        presence_penalty=1.0,
        dry_multiplier=1.0,
        dry_sequence_breakers=(),
        typical_p=0.9,
        top_n_sigma=1.0,
        xtc_probability=0.5,
    )
    assert Sampler(params, 9).stages == tuple(name for name in SAMPLERS if name != "grammar")
    assert Sampler(params, 9).sample(np.arange(9, dtype=np.float32), [1, 2, 1]) in range(9)


def test_stages_that_are_off_are_left_out() -> None:
    assert Sampler(SamplingParams(**OFF), 9).stages == ()
    assert Sampler(SamplingParams(**{**OFF, "min_p": 0.1}), 9).stages == ("min_p",)
    assert Sampler(SamplingParams(), 9).stages == ("top_k", "top_p", "min_p", "temperature")
    assert Sampler(SamplingParams(mirostat=1), 9).stages == ("temperature", "mirostat_1")


def test_the_order_is_the_users() -> None:
    order = ("temperature", "min_p", "top_k")
    params = SamplingParams(samplers=order, temperature=100, min_p=0.9, top_p=1, seed=0)
    sampler = Sampler(params, 3)
    assert sampler.stages == order
    # At temperature 100, all are nearly equal, and min_p drops none; before it, only token 0 would be left.
    assert {sampler.sample(f32(5, 2, 0), ()) for _ in range(60)} == {0, 1, 2}
    assert set(run(SamplingParams(temperature=100, min_p=0.9, seed=0), f32(5, 2, 0), 60)) == {0}


def test_penalties_may_come_after_a_truncation() -> None:
    params = SamplingParams(samplers=("top_k", "penalties"), top_k=2, presence_penalty=2.0, seed=0)
    sampler = Sampler(params, 4)
    # Tokens 0 and 1 are left, and the penalties make 1 by far the likelier.
    drawn = [sampler.sample(f32(20, 19, 18.9, 0), [0, 0, 0]) for _ in range(100)]
    assert set(drawn) == {0, 1}
    assert drawn.count(1) > 50


def test_truncations_see_the_distribution_before_the_temperature() -> None:
    # At temperature 1 the second token has a share of 0.27 and top_p 0.7 drops it; at temperature 100 it would stay.
    assert set(run(SamplingParams(temperature=100, top_p=0.7, min_p=0, seed=0), f32(1, 0), 200)) == {0}


def test_sigma_is_that_of_the_models_logits_wherever_the_stage_is() -> None:
    # Of all ten, sigma is 3.91; of the five that top-k leaves, it would be 0.4.
    logits = f32(8, 7, 8, 8, 8, 0, 0, 0, 0, 0)
    assert np.std(logits.astype(np.float64)) == pytest.approx(3.91, abs=0.005)
    params = SamplingParams(top_n_sigma=0.26, top_k=5, top_p=1, min_p=0, temperature=1, seed=1)
    assert set(run(params, logits, 100)) == {0, 1, 2, 3, 4}  # 1.02 below the largest
    assert set(run(replace(params, top_n_sigma=0.25), logits, 100)) == {0, 2, 3, 4}  # 0.98 below


@pytest.mark.parametrize(("probability", "least", "most"), [(1.0, 100, 100), (0.5, 30, 70), (0.01, 0, 6)])
def test_xtc_applies_as_often_as_its_probability(probability: float, least: int, most: int) -> None:
    params = SamplingParams(**OFF, xtc_probability=probability, xtc_threshold=0.01, seed=1)
    tokens = run(params, f32(20, 16), 100)  # the first has all but 2 % of the probability
    assert least <= tokens.count(1) <= most + 6


def test_dynamic_temperature_is_low_where_the_model_is_certain() -> None:
    params = SamplingParams(**{**OFF, "dynatemp_range": 1.0, "seed": 2})
    assert run(params, f32(6, 0, 0), 300).count(0) == 300  # at temperature 1, one in 200 is another
    flat = run(params, f32(1, 0, 0), 900)
    # Entropy 0.91 of log 3: temperature 1.81 and a share of 0.465 for the first, against 0.576 at temperature 1.
    assert 0.42 < flat.count(0) / 900 < 0.51


def test_dry_stops_a_loop() -> None:
    params = SamplingParams(temperature=0, dry_multiplier=1.0, dry_sequence_breakers=())
    logits = f32(9, 8, 0)
    assert Sampler(params, 3).sample(logits, [1, 1, 2, 0, 1, 1, 2]) == 1
    assert Sampler(replace(params, dry_penalty_last_n=4), 3).sample(logits, [1, 1, 2, 0, 1, 1, 2]) == 0
    assert Sampler(params, 3, dry_breakers=SequenceBreakers(frozenset({2}))).sample(logits, [1, 2, 0, 1, 2]) == 0


def test_dry_needs_the_token_ids_of_its_breakers() -> None:
    with pytest.raises(ParameterError, match="dry_sequence_breakers are texts"):
        Sampler(SamplingParams(dry_multiplier=1.0), 3)
    assert Sampler(SamplingParams(), 3).stages
    with pytest.raises(ParameterError, match="dry_breakers names token 3"):
        Sampler(SamplingParams(), 3, dry_breakers=SequenceBreakers(longer=frozenset({(1, 3)})))


def test_bias_comes_before_the_truncations() -> None:
    assert set(run(SamplingParams(top_k=1, logit_bias={2: 5.0}, seed=0), f32(3, 2, 1), 20)) == {2}


def test_penalties_look_at_the_history() -> None:
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=2.0, penalty_window=2), 3)
    logits = f32(3, 2, 0)
    assert sampler.sample(logits, [1, 2]) == 0
    assert sampler.sample(logits, [0, 2]) == 1
    assert sampler.sample(logits, [0, 2, 2]) == 0


def test_the_logits_are_not_modified() -> None:
    logits = f32(1, 2, 3)
    logits.flags.writeable = False
    params = SamplingParams(logit_bias={0: 1.0}, repetition_penalty=2.0, seed=0)
    assert Sampler(params, 3).sample(logits, [1]) in (0, 1, 2)
    assert logits.tolist() == [1, 2, 3]


# Greedy


def test_greedy_takes_the_largest_and_the_lowest_id_among_equals() -> None:
    assert run(SamplingParams(temperature=0), f32(1, 7, 7, -2), 3) == [1, 1, 1]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40),
    top_k=st.integers(0, 50),
    top_p=st.floats(1e-6, 1),
    min_p=st.floats(0, 1),
)
def test_greedy_is_the_argmax_whatever_the_truncations(
    values: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=0, top_k=top_k, top_p=top_p, min_p=min_p)
    assert run(params, f32(*values), 1) == [int(np.argmax(f32(*values)))]


# Randomness


@pytest.mark.parametrize(
    ("params", "probabilities"),
    [
        (SamplingParams(**OFF, seed=11), [0.1, 0.2, 0.3, 0.4]),
        (SamplingParams(**{**OFF, "top_k": 2}, seed=12), [0, 0, 3 / 7, 4 / 7]),
        (SamplingParams(**{**OFF, "top_p": 0.75}, seed=13), [0, 2 / 9, 3 / 9, 4 / 9]),
        (SamplingParams(**{**OFF, "min_p": 0.7}, seed=14), [0, 0, 3 / 7, 4 / 7]),
        (SamplingParams(**{**OFF, "temperature": 0.5}, seed=15), [1 / 30, 4 / 30, 9 / 30, 16 / 30]),
        (SamplingParams(**OFF, logit_bias={0: -INF}, seed=16), [0, 2 / 9, 3 / 9, 4 / 9]),
        (SamplingParams(**OFF, xtc_probability=1, xtc_threshold=0.25, seed=17), [1 / 6, 2 / 6, 3 / 6, 0]),
        (SamplingParams(**OFF, xtc_probability=0.5, xtc_threshold=0.25, seed=18), [2 / 15, 4 / 15, 6 / 15, 3 / 15]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(params: SamplingParams, probabilities: list[float]) -> None:
    n_draws = 2000
    counts = Counter(run(params, np.log(f32(0.1, 0.2, 0.3, 0.4)), n_draws))
    assert all(counts[token] == 0 for token, p in enumerate(probabilities) if p == 0)
    expected = {token: n_draws * p for token, p in enumerate(probabilities) if p > 0}
    chi_square = sum((counts[token] - n) ** 2 / n for token, n in expected.items())
    assert chi_square < 11.34  # the 99 % quantile for three degrees of freedom; the seed is fixed, so it never varies


def test_draws_from_a_large_vocabulary_follow_its_distribution() -> None:
    # Half of the probability lies on one token, and half on 50,000 equal ones.
    logits = np.zeros(50_001, dtype=np.float32)
    logits[7] = math.log(50_000)
    tokens = run(SamplingParams(**OFF, seed=3), logits, 100)
    assert 40 <= tokens.count(7) <= 60
    assert len(set(tokens)) > 35


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    params = SamplingParams(**OFF, seed=5)
    assert run(params, logits, 20) == run(params, logits, 20)
    assert run(params, logits, 20) != run(SamplingParams(**OFF, seed=6), logits, 20)


def test_the_stream_of_a_seed_never_changes() -> None:
    """A text that was made with a seed can be made again with a later release."""
    logits = np.zeros(1000, dtype=np.float32)
    assert run(SamplingParams(**OFF, seed=42), logits, 8) == [226, 561, 141, 302, 905, 24, 238, 213]


def test_one_uniform_a_token_whatever_the_logits() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    sampler = Sampler(SamplingParams(**OFF, seed=8), 1000)
    peaked = logits.copy()
    peaked[3] = 1000.0
    first = [sampler.sample(logits, ()), sampler.sample(peaked, ()), sampler.sample(logits, ())]
    plain = run(SamplingParams(**OFF, seed=8), logits, 3)
    assert first == [plain[0], 3, plain[2]]


def test_without_a_seed_one_is_drawn_and_repeats_the_run() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    first, second = (Sampler(SamplingParams(**OFF), 1000) for _ in range(2))
    assert first.seed != second.seed
    assert first.params.seed is None
    again = Sampler(SamplingParams(**OFF, seed=first.seed), 1000)
    assert [first.sample(logits, ()) for _ in range(8)] == [again.sample(logits, ()) for _ in range(8)]


def test_a_sampler_goes_on_where_its_state_was_saved() -> None:
    logits = np.zeros(1000, dtype=np.float32)
    params = SamplingParams(**OFF, xtc_probability=0.5, xtc_threshold=1e-4, seed=5)
    first = Sampler(params, 1000)
    for _ in range(7):
        first.sample(logits, ())
    state = first.state()
    assert state == SamplerState(seed=5, n_uniforms=14, mu=None, grammar=None)
    second = Sampler(replace(params, seed=None), 1000)
    second.restore(SamplerState(**json.loads(json.dumps(asdict(state)))))
    assert second.seed == 5
    assert [first.sample(logits, ()) for _ in range(20)] == [second.sample(logits, ()) for _ in range(20)]
    assert second.state() == first.state()
    second.restore(state)  # back again
    third = Sampler(params, 1000)
    third.restore(state)
    assert [second.sample(logits, ()) for _ in range(5)] == [third.sample(logits, ()) for _ in range(5)]


def test_mirostat_goes_on_where_its_state_was_saved() -> None:
    logits = np.linspace(0, 9, 1000, dtype=np.float32)
    params = SamplingParams(mirostat=2, seed=5)
    first, second = Sampler(params, 1000), Sampler(params, 1000)
    for _ in range(9):
        first.sample(logits, ())
    assert first.state().mu != second.state().mu
    second.restore(SamplerState(**json.loads(json.dumps(asdict(first.state())))))
    assert [first.sample(logits, ()) for _ in range(20)] == [second.sample(logits, ()) for _ in range(20)]
    with pytest.raises(ParameterError, match="of a sampler with mirostat, and this one is without"):
        Sampler(SamplingParams(), 1000).restore(first.state())
    with pytest.raises(ParameterError, match="of a sampler without mirostat, and this one is with"):
        first.restore(Sampler(SamplingParams(), 1000).state())


# Refusals


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0)])
@pytest.mark.parametrize("bad", [math.nan, INF])
def test_logits_that_are_not_numbers_are_an_error(params: SamplingParams, bad: float) -> None:
    with pytest.raises(ModelError, match=rf"logit of {bad} for token 1 \(1 of 3"):
        Sampler(params, 3).sample(f32(5, bad, -INF), ())


def test_nothing_but_minus_infinity_is_an_error() -> None:
    with pytest.raises(ModelError, match="all -inf"):
        Sampler(SamplingParams(), 2).sample(f32(-INF, -INF), ())


def test_a_bias_that_bans_everything_is_an_error() -> None:
    sampler = Sampler(SamplingParams(logit_bias={0: -INF, 1: -INF}), 2)
    with pytest.raises(ParameterError, match="logit_bias bans every token"):
        sampler.sample(f32(1, 2), ())


def test_a_bias_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(ParameterError, match="token 3, but the vocabulary has 3 tokens"):
        Sampler(SamplingParams(logit_bias={3: 1.0}), 3)


@pytest.mark.parametrize("logits", [f32(1, 2), f32(1, 2, 3).reshape(1, 3), np.array([1, 2, 3]), np.zeros(3)])
def test_logits_of_another_shape_or_type_are_an_error(logits: NDArray[np.float32]) -> None:
    with pytest.raises(ParameterError, match=r"float32 of shape \(3,\)"):
        Sampler(SamplingParams(), 3).sample(logits, ())


def test_an_empty_vocabulary_is_an_error() -> None:
    with pytest.raises(ParameterError, match="n_vocab is 0"):
        Sampler(SamplingParams(), 0)
