"""The temperature, fixed or following the entropy."""

from __future__ import annotations

import math

from minfer.sampling.candidates import Tokens, weights


def apply_temperature(tokens: Tokens, temperature: float) -> Tokens:
    """Divides the logits, relative to the largest, by `temperature`: p becomes proportional to p^(1/temperature).

    At temperature 0, the limit, the likeliest token is left, among equals the lowest id. Source: Ackley, Hinton and
    Sejnowski 1985, "A learning algorithm for Boltzmann machines".
    """
    return tokens.tempered(temperature) if temperature > 0 else tokens.leading(1)


def dynamic_temperature(tokens: Tokens, temperature: float, spread: float, exponent: float) -> float:
    """A temperature within `spread` of `temperature`: the lowest for a certain token, the highest for equal ones.

    lowest + (highest - lowest) * h^exponent, where h is the entropy of the tokens, divided by that of as many equal
    ones, the largest there is. Origin: entropy sampling, kalomaze 2023, as merged in
    https://github.com/ggml-org/llama.cpp/pull/4972. A token alone has no entropy to follow, and any temperature.
    """
    candidates = tokens.listed()
    if len(candidates) < 2:
        return temperature
    relative = weights(candidates)
    total = float(relative.sum())
    # The logarithm of a probability, without taking that of one that is 0.
    log_probability = (candidates.logits - candidates.logits.max()) - math.log(total)
    entropy = -float((relative * log_probability).sum()) / total
    share = min(1.0, max(0.0, entropy / math.log(len(candidates))))  # but for rounding it lies between
    return (temperature - spread) + 2 * spread * math.pow(share, exponent)
