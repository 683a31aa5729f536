"""Which stages the parameters switch on, and which parameters exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minfer.errors import ParameterError

if TYPE_CHECKING:
    from minfer.sampling.params import SamplingParams

SAMPLERS: tuple[str, ...] = (
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
"""Every stage of the pipeline, in the order that is the default."""

KEEPS_LIKELIEST = ("top_k", "top_p", "min_p", "top_n_sigma")
"""Truncations that the likeliest token always survives."""
TRUNCATIONS = (*KEEPS_LIKELIEST, "typical_p", "xtc")
"""Stages that drop tokens because of their probability, which is what mirostat does instead."""

_NEUTRAL: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "logit_bias": {"logit_bias": ({},)},
    "penalties": {"repetition_penalty": (1.0,), "frequency_penalty": (0.0,), "presence_penalty": (0.0,)},
    "dry": {"dry_multiplier": (0.0,)},
    "grammar": {},
    "top_k": {"top_k": (0,)},
    "typical_p": {"typical_p": (1.0,)},
    "top_p": {"top_p": (1.0,)},
    "min_p": {"min_p": (0.0,)},
    "top_n_sigma": {"top_n_sigma": (-1.0, 0.0)},
    "xtc": {"xtc_probability": (0.0,)},
    "temperature": {"temperature": (1.0,), "dynatemp_range": (0.0,)},
}
"""The parameters that switch each stage on, with the values that leave it off."""


def is_on(params: SamplingParams, stage: str) -> bool:
    """Whether the parameters switch a stage of `SAMPLERS` on. (They never do for the grammar.)"""
    if stage not in params.samplers:
        return False
    if stage in TRUNCATIONS and (params.mirostat or (params.is_greedy and stage in KEEPS_LIKELIEST)):
        return False
    if stage == "penalties" and params.penalty_window == 0:
        return False
    if stage == "dry" and params.dry_penalty_last_n == 0:
        return False
    if stage == "xtc" and params.xtc_threshold > 0.5:
        return False
    return any(getattr(params, name) not in neutral for name, neutral in _NEUTRAL[stage].items())


def check_combinations(params: SamplingParams) -> None:
    """Refuses parameters that contradict each other, by name.

    Raises:
        ParameterError: see `SamplingParams` and `docs/sampling.md`.
    """
    _check_order(params)
    if params.dynatemp_range > params.temperature:
        raise ParameterError(
            f"dynatemp_range is {params.dynatemp_range!r}; it must be at most temperature ({params.temperature!r}), "
            f"so that no temperature is negative"
        )
    if params.is_greedy:
        _refuse_together(params, ("typical_p", "xtc"), "temperature 0 takes the likeliest token, which it may drop")
        if params.mirostat:
            raise ParameterError(
                f"mirostat {params.mirostat} with temperature 0: the likeliest token is always taken, and no surprise "
                f"can be aimed at; use a temperature above 0, or mirostat 0"
            )
    if params.mirostat:
        _refuse_together(params, TRUNCATIONS, f"mirostat {params.mirostat} takes its place")
        for name, neutral in (("min_keep", (0, 1)), ("dynatemp_range", (0.0,))):
            if getattr(params, name) not in neutral:
                raise ParameterError(
                    f"{name} is {getattr(params, name)!r}; with mirostat {params.mirostat} it must be {neutral[0]}"
                )


def _check_order(params: SamplingParams) -> None:
    for name in params.samplers:
        if name not in SAMPLERS:
            raise ParameterError(f"samplers names {name!r}; the stages are {', '.join(SAMPLERS)}")
        if params.samplers.count(name) > 1:
            raise ParameterError(f"samplers names {name!r} {params.samplers.count(name)} times; once is the most")
    left_out = tuple(name for name in SAMPLERS if name not in params.samplers)
    _refuse_together(params, left_out, "samplers leaves that stage out")
    measured = [name for name in params.samplers if name in ("temperature", "top_n_sigma") and is_on(params, name)]
    if measured == ["temperature", "top_n_sigma"]:
        raise ParameterError(
            "samplers puts temperature before top_n_sigma, which measures the logits as the model gave them; put "
            "top_n_sigma first (it keeps the same tokens at any temperature)"
        )


def _refuse_together(params: SamplingParams, stages: tuple[str, ...], why: str) -> None:
    """Refuses stages that are set: to a value that is neither neutral nor the default."""
    for stage in stages:
        for name, neutral in _NEUTRAL[stage].items():
            value = getattr(params, name)
            default = getattr(type(params), name, {})  # logit_bias, whose default is made anew, has none on the class
            if value not in neutral and value != default:
                raise ParameterError(f"{name} is {value!r}, and {why}; set {name} to {neutral[0]!r}")
