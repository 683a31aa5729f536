"""The stages of the pipeline by name: what each makes of the tokens that are left.

Their functions are pure: what a stage may look at besides the tokens is in `Step`. Which stages run, and in which
order, is for `SamplingParams` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.sampling.adjust import add_logit_bias, last_tokens, penalise
from minfer.sampling.candidates import Tokens
from minfer.sampling.dry import SequenceBreakers, penalise_repetition
from minfer.sampling.grammar import apply_grammar
from minfer.sampling.params import SamplingParams
from minfer.sampling.temperature import apply_temperature, dynamic_temperature
from minfer.sampling.truncate import (
    exclude_top_choices,
    keep_min_p,
    keep_top_k,
    keep_top_n_sigma,
    keep_top_p,
    keep_typical,
    standard_deviation,
)


@dataclass(frozen=True, eq=False)
class Step:
    """What the stages of one token may look at.

    Attributes:
        params: the parameters.
        logits: what the model computed, float32, shape (n_vocab,).
        history: the tokens so far, the oldest first.
        breakers: the sequence breakers of DRY.
        allowed: what the grammar allows, bool, shape (n_vocab,); None without one.
        chance: a number in [0, 1) that decides whether XTC applies.
    """

    params: SamplingParams
    logits: NDArray[np.float32]
    history: Sequence[int]
    breakers: SequenceBreakers
    allowed: NDArray[np.bool_] | None
    chance: float

    @property
    def min_keep(self) -> int:
        """How many tokens a cut leaves at least."""
        return max(1, self.params.min_keep)


def _penalise(tokens: Tokens, step: Step) -> Tokens:
    return penalise(
        tokens,
        step.history,
        len(step.logits),
        window=step.params.penalty_window,
        repetition=step.params.repetition_penalty,
        frequency=step.params.frequency_penalty,
        presence=step.params.presence_penalty,
    )


def _dry(tokens: Tokens, step: Step) -> Tokens:
    return penalise_repetition(
        tokens,
        last_tokens(step.history, step.params.dry_penalty_last_n, len(step.logits)),
        step.breakers,
        multiplier=step.params.dry_multiplier,
        base=step.params.dry_base,
        allowed_length=step.params.dry_allowed_length,
    )


def _grammar(tokens: Tokens, step: Step) -> Tokens:
    return tokens if step.allowed is None else apply_grammar(tokens, step.allowed, len(step.logits))


def _top_n_sigma(tokens: Tokens, step: Step) -> Tokens:
    sigma = standard_deviation(step.logits)
    return keep_top_n_sigma(tokens, step.params.top_n_sigma, sigma, step.min_keep)


def _xtc(tokens: Tokens, step: Step) -> Tokens:
    if step.chance >= step.params.xtc_probability:
        return tokens
    return exclude_top_choices(tokens, step.params.xtc_threshold, step.min_keep)


def _temperature(tokens: Tokens, step: Step) -> Tokens:
    params = step.params
    temperature = params.temperature
    if params.dynatemp_range > 0:
        temperature = dynamic_temperature(tokens, temperature, params.dynatemp_range, params.dynatemp_exponent)
    return apply_temperature(tokens, temperature)


STAGES: Mapping[str, Callable[[Tokens, Step], Tokens]] = {
    "logit_bias": lambda tokens, step: add_logit_bias(tokens, step.params.logit_bias),
    "penalties": _penalise,
    "dry": _dry,
    "grammar": _grammar,
    "top_k": lambda tokens, step: keep_top_k(tokens, step.params.top_k),
    "typical_p": lambda tokens, step: keep_typical(tokens, step.params.typical_p, step.min_keep),
    "top_p": lambda tokens, step: keep_top_p(tokens, step.params.top_p, step.min_keep),
    "min_p": lambda tokens, step: keep_min_p(tokens, step.params.min_p, step.min_keep),
    "top_n_sigma": _top_n_sigma,
    "xtc": _xtc,
    "temperature": _temperature,
}
"""One for each name of `SAMPLERS`."""
