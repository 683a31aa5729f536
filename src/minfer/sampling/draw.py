"""The draw itself."""

from __future__ import annotations

from minfer.sampling.candidates import Tokens, nucleus


def draw(tokens: Tokens, uniform: float) -> int:
    """The token at `uniform` (in [0, 1)) of the cumulative distribution, in the fixed order of the tokens.

    Inverse transform sampling: token i is drawn for the uniforms in an interval as long as its probability, and the
    likeliest tokens for the greatest. A token of probability 0 has no interval.
    """
    if len(tokens) == 1:  # as at temperature 0: all intervals but one are empty
        return int(tokens.listed().ids[0])
    return int(nucleus(tokens, 1.0 - uniform).ids[-1])
