"""The last stages: the temperature, and the draw itself."""

from __future__ import annotations

import numpy as np

from minfer.sampling.candidates import Candidates, nucleus


def apply_temperature(candidates: Candidates, temperature: float) -> Candidates:
    """Divides the logits, relative to the largest, by `temperature` > 0: p becomes proportional to p^(1/temperature).

    Source: Ackley, Hinton and Sejnowski 1985, "A learning algorithm for Boltzmann machines".
    """
    with np.errstate(over="ignore"):  # a candidate far below the largest becomes -inf, that is, probability 0
        return Candidates(candidates.ids, (candidates.logits - candidates.logits.max()) / temperature)


def draw(candidates: Candidates, uniform: float) -> int:
    """The token at `uniform` (in [0, 1)) of the cumulative distribution, in the fixed order of the candidates.

    Inverse transform sampling: token i is drawn for the uniforms in an interval as long as its probability, and the
    likeliest tokens for the greatest. A token of probability 0 has no interval.
    """
    return int(nucleus(candidates, 1.0 - uniform).ids[-1])
