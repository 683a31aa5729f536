from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from minfer.errors import ParameterError
from minfer.sampling import SAMPLERS, SamplingParams

INF, NAN = math.inf, math.nan


def test_defaults() -> None:
    params = SamplingParams()
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 40, 0.95, 0.05)
    assert (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) == (1.0, 0.0, 0.0)
    assert (params.penalty_window, dict(params.logit_bias), params.seed) == (64, {}, None)
    assert (params.dynatemp_range, params.dynatemp_exponent, params.typical_p, params.top_n_sigma) == (0, 1, 1, -1)
    assert (params.xtc_probability, params.xtc_threshold, params.min_keep) == (0, 0.1, 0)
    assert (params.dry_multiplier, params.dry_base, params.dry_allowed_length) == (0, 1.75, 2)
    assert (params.dry_penalty_last_n, params.dry_sequence_breakers) == (-1, ("\n", ":", '"', "*"))
    assert (params.mirostat, params.mirostat_tau, params.mirostat_eta) == (0, 5, 0.1)
    assert params.samplers == SAMPLERS
    assert not params.is_greedy
    assert SamplingParams(temperature=0).is_greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", INF),
        ("temperature", NAN),
        ("temperature", 10**400),
        ("temperature", True),
        ("temperature", "1"),
        ("temperature", None),
        ("top_k", -2),
        ("top_k", 40.0),
        ("top_k", True),
        ("top_p", 0),
        ("top_p", 1.0000001),
        ("top_p", NAN),
        ("top_p", False),
        ("min_p", -1e-9),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", INF),
        ("frequency_penalty", 2.01),
        ("frequency_penalty", -2.01),
        ("presence_penalty", 2.01),
        ("presence_penalty", NAN),
        ("dynatemp_range", -0.1),
        ("dynatemp_range", 0.9),
        ("dynatemp_exponent", 0),
        ("typical_p", 0),
        ("typical_p", 1.1),
        ("top_n_sigma", -0.5),
        ("top_n_sigma", INF),
        ("xtc_probability", -0.1),
        ("xtc_probability", 1.1),
        ("xtc_threshold", 0),
        ("xtc_threshold", 1.1),
        ("min_keep", -1),
        ("min_keep", 1.0),
        ("dry_multiplier", -0.1),
        ("dry_multiplier", NAN),
        ("dry_base", 0.99),
        ("dry_allowed_length", 0),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", "\n"),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", [1]),
        ("dry_sequence_breakers", None),
        ("mirostat", 3),
        ("mirostat", -1),
        ("mirostat", True),
        ("mirostat_tau", -1),
        ("mirostat_eta", -0.1),
        ("samplers", "top_k"),
        ("samplers", ["top-k"]),
        ("samplers", ["top_k", "top_k"]),
        ("samplers", [3]),
        ("penalty_window", -2),
        ("penalty_window", 1.5),
        ("logit_bias", {1: INF}),
        ("logit_bias", {1: NAN}),
        ("logit_bias", {1: True}),
        ("logit_bias", {1: "2"}),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", {True: 0.0}),
        ("logit_bias", [1.0]),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 1.0),
        ("seed", True),
    ],
)
def test_refuses_what_is_out_of_range_and_names_the_field(name: str, value: object) -> None:
    with pytest.raises(ParameterError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_the_message_has_the_value_and_the_range() -> None:
    with pytest.raises(ParameterError, match=r"^top_p is 1\.5; it must be above 0 and at most 1"):
        SamplingParams(top_p=1.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 1e9),
        ("top_k", 0),
        ("top_p", 5e-324),
        ("top_p", 1),
        ("min_p", 0),
        ("min_p", 1),
        ("repetition_penalty", 1e-9),
        ("frequency_penalty", -2),
        ("presence_penalty", 2),
        ("dynatemp_range", 0.8),
        ("typical_p", 1),
        ("top_n_sigma", 0),
        ("top_n_sigma", -1),
        ("xtc_probability", 1),
        ("xtc_threshold", 1),
        ("min_keep", 0),
        ("dry_multiplier", 0),
        ("dry_base", 1),
        ("dry_allowed_length", 1),
        ("dry_penalty_last_n", 0),
        ("dry_sequence_breakers", ()),
        ("mirostat", 2),
        ("mirostat_tau", 0),
        ("mirostat_eta", 0),
        ("samplers", ()),
        ("penalty_window", -1),
        ("penalty_window", 0),
        ("logit_bias", {0: -INF, 7: 1.5}),
        ("seed", 0),
        ("seed", 2**64 - 1),
    ],
)
def test_accepts_the_borders_unchanged(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


def test_numbers_of_other_libraries_become_pythons() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), top_p=Fraction(1, 2))  # type: ignore[arg-type]
    assert (type(params.temperature), type(params.top_k), type(params.top_p)) == (float, int, float)
    assert params == SamplingParams(temperature=0.5, top_k=3, top_p=0.5)


def test_is_immutable_hashable_and_picklable() -> None:
    params = SamplingParams(logit_bias={3: 1.0}, seed=1)
    with pytest.raises(AttributeError):
        params.top_k = 1  # type: ignore[misc]
    assert hash(params) == hash(SamplingParams(logit_bias={3: 1.0}, seed=1))
    assert pickle.loads(pickle.dumps(params)) == params


def test_copies_the_logit_bias() -> None:
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[4] = 2.0
    assert params.logit_bias == {3: 1.0}


def test_takes_keywords_only() -> None:
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[misc]


def test_sequences_become_tuples() -> None:
    params = SamplingParams(samplers=["temperature", "top_k"], dry_sequence_breakers=["x"])  # type: ignore[arg-type]
    assert (params.samplers, params.dry_sequence_breakers) == (("temperature", "top_k"), ("x",))
    assert hash(params) == hash(SamplingParams(samplers=("temperature", "top_k"), dry_sequence_breakers=("x",)))
