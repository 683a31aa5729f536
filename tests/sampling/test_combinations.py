"""Which parameters switch which stage on, and which exclude each other."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from minfer.errors import ParameterError
from minfer.sampling import SAMPLERS, SamplingParams
from minfer.sampling.combinations import is_on
from minfer.sampling.pipeline import STAGES

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
SWITCHES: list[tuple[str, dict[str, Any]]] = [
    ("logit_bias", {"logit_bias": {0: 1.0}}),
    ("penalties", {"repetition_penalty": 1.1}),
    ("penalties", {"frequency_penalty": -0.1}),
    ("penalties", {"presence_penalty": 0.1}),
    ("dry", {"dry_multiplier": 0.8}),
    ("top_k", {"top_k": 1}),
    ("typical_p", {"typical_p": 0.9}),
    ("top_p", {"top_p": 0.9}),
    ("min_p", {"min_p": 0.1}),
    ("top_n_sigma", {"top_n_sigma": 1.0}),
    ("xtc", {"xtc_probability": 0.5}),
    ("temperature", {"temperature": 0.9}),
    ("temperature", {"dynatemp_range": 0.5}),
]


def on(**options: Any) -> list[str]:
    params = SamplingParams(**{**OFF, **options})
    return [name for name in params.samplers if is_on(params, name)]


def test_there_is_a_stage_of_every_name() -> None:
    assert tuple(STAGES) == SAMPLERS


@pytest.mark.parametrize(("stage", "options"), SWITCHES)
def test_one_parameter_switches_its_stage_on_and_no_other(stage: str, options: dict[str, Any]) -> None:
    assert on() == []
    assert on(**options) == [stage]


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 0.1, "penalty_window": 0},
        {"dry_multiplier": 1.0, "dry_penalty_last_n": 0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.51},
        {"top_n_sigma": 0.0},
        {"logit_bias": {}},
        {"xtc_threshold": 0.2, "dry_base": 2.0, "mirostat_tau": 3.0, "dynatemp_exponent": 2.0, "min_keep": 3},
    ],
)
def test_off(options: dict[str, Any]) -> None:
    assert on(**options) == []


def test_greedy_leaves_out_what_keeps_the_likeliest() -> None:
    assert on(temperature=0, top_k=9, top_p=0.5, min_p=0.5, top_n_sigma=1.0) == ["temperature"]
    assert on(temperature=0, logit_bias={0: 1.0}) == ["logit_bias", "temperature"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"typical_p": 0.9}, "typical_p is 0.9, and temperature 0"),
        ({"xtc_probability": 0.5}, "xtc_probability is 0.5, and temperature 0"),
        ({"dynatemp_range": 0.1}, r"dynatemp_range is 0.1; it must be at most temperature \(0.0\)"),
        ({"mirostat": 1}, "mirostat 1 with temperature 0"),
    ],
)
def test_greedy_excludes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        SamplingParams(temperature=0, **options)


@pytest.mark.parametrize("mirostat", [1, 2])
def test_mirostat_takes_the_place_of_the_default_truncations(mirostat: int) -> None:
    params = SamplingParams(mirostat=mirostat, repetition_penalty=1.1, logit_bias={0: 1.0})
    assert [name for name in SAMPLERS if is_on(params, name)] == ["logit_bias", "penalties", "temperature"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", 39),
        ("typical_p", 0.9),
        ("top_p", 0.9),
        ("min_p", 0.1),
        ("top_n_sigma", 1.0),
        ("xtc_probability", 0.5),
        ("min_keep", 2),
        ("dynatemp_range", 0.1),
    ],
)
def test_mirostat_excludes_other_cuts(name: str, value: float) -> None:
    with pytest.raises(ParameterError, match=rf"{name} is {value}.*mirostat 2 "):
        SamplingParams(mirostat=2, **{name: value})


@pytest.mark.parametrize(("stage", "options"), SWITCHES)
def test_a_stage_that_is_left_out_may_not_be_set(stage: str, options: dict[str, Any]) -> None:
    left = tuple(name for name in SAMPLERS if name != stage)
    name = next(iter(options))
    with pytest.raises(ParameterError, match=f"{name} is .* and samplers leaves that stage out; set {name} to"):
        SamplingParams(**options, samplers=left)


def test_a_stage_that_is_left_out_is_off() -> None:
    params = SamplingParams(samplers=("min_p",))
    assert [name for name in SAMPLERS if is_on(params, name)] == ["min_p"]
    with pytest.raises(ParameterError, match=r"temperature is 0\.0, and samplers leaves that stage out"):
        SamplingParams(samplers=(), temperature=0)


def test_top_n_sigma_comes_before_the_temperature() -> None:
    order = ("temperature", "top_n_sigma")
    with pytest.raises(ParameterError, match="puts temperature before top_n_sigma"):
        SamplingParams(top_n_sigma=1.0, samplers=order)
    assert SamplingParams(top_n_sigma=1.0, samplers=order, temperature=1.0).samplers == order
    assert SamplingParams(samplers=order).samplers == order


def test_replace_keeps_defaults_neutral_for_mirostat() -> None:
    assert replace(SamplingParams(), mirostat=2).mirostat == 2


def test_every_parameter_is_in_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text("utf-8")
    for each in fields(SamplingParams):
        assert f"`{each.name}`" in page
    for name in SAMPLERS:
        assert f"`{name}`" in page
