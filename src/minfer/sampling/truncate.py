"""Stages that drop unlikely candidates. The likeliest one survives each of them."""

from __future__ import annotations

import math

from minfer.sampling.candidates import Candidates, leading, nucleus, select


def keep_top_k(candidates: Candidates, k: int) -> Candidates:
    """The `k` likeliest candidates; among equals the lower ids. Source: Fan et al. 2018, arXiv:1805.04833."""
    return leading(candidates, k)


def keep_top_p(candidates: Candidates, p: float) -> Candidates:
    """The fewest likeliest candidates whose probabilities reach `p`, the one that reaches it included.

    Probabilities are relative to the candidates given. Source: nucleus sampling, Holtzman et al. 2019,
    arXiv:1904.09751.
    """
    return nucleus(candidates, p)


def keep_min_p(candidates: Candidates, p: float) -> Candidates:
    """The candidates at least `p` (in (0, 1]) times as likely as the likeliest.

    Source: Nguyen et al. 2024, arXiv:2407.01082.
    """
    return select(candidates, candidates.logits >= candidates.logits.max() + math.log(p))
