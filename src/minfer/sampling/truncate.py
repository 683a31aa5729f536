"""Stages that drop tokens because of their probability, among those that are left.

The likeliest one survives each of them, but for typical-p and XTC. `min_keep` is the least number of tokens that a cut
leaves (where there are so many): the first ones in the order by which it cuts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from minfer.sampling.candidates import FIRST_PREFIX, PREFIX_GROWTH, Candidates, Tokens, nucleus, select, weights
from minfer.sampling.vocabulary import threshold


def keep_top_k(tokens: Tokens, k: int) -> Candidates:
    """The `k` likeliest tokens; among equals the lower ids. Source: Fan et al. 2018, arXiv:1805.04833."""
    return tokens.leading(k)


def keep_typical(tokens: Tokens, p: float, min_keep: int = 1) -> Candidates:
    """The fewest tokens of the most typical surprise whose probabilities reach `p`, that which reaches it included.

    A token is the more typical, the nearer its surprise -log(probability) lies to the entropy, their mean; among
    equals the likelier is, and then the lower id. Source: locally typical sampling, Meister et al. 2022,
    arXiv:2202.00666.
    """
    candidates = tokens.listed()
    relative = weights(candidates)
    total = float(relative.sum())
    surprise = math.log(total) - (candidates.logits - candidates.largest())
    entropy = float((relative * surprise).sum()) / total
    distance = np.abs(surprise - entropy)
    n = max(FIRST_PREFIX, min_keep)
    while True:
        near = np.flatnonzero(-distance >= threshold(-distance, n))  # the n most typical ones, and few others
        near = near[np.lexsort((candidates.ids[near], -candidates.logits[near], distance[near]))]
        cumulative = np.cumsum(relative[near])
        if cumulative[-1] >= p * total or n >= len(candidates):
            break
        n *= PREFIX_GROWTH
    reached = int(np.searchsorted(cumulative, min(p * total, float(cumulative[-1])), side="left")) + 1
    return select(candidates, near[: max(reached, min_keep)])


def keep_top_p(tokens: Tokens, p: float, min_keep: int = 1) -> Candidates:
    """The fewest likeliest tokens whose probabilities reach `p`, the one that reaches it included.

    Source: nucleus sampling, Holtzman et al. 2019, arXiv:1904.09751.
    """
    return nucleus(tokens, p, min_keep)


def keep_min_p(tokens: Tokens, p: float, min_keep: int = 1) -> Tokens:
    """The tokens at least `p` (in (0, 1]) times as likely as the likeliest.

    Source: Nguyen et al. 2024, arXiv:2407.01082.
    """
    return tokens.at_least(tokens.largest() + math.log(p), min_keep)


def keep_top_n_sigma(tokens: Tokens, n: float, sigma: float, min_keep: int = 1) -> Tokens:
    """The tokens whose logit is at most `n` times `sigma` below the largest.

    `sigma` is the standard deviation of all logits of the model; see `standard_deviation`. Source: Tang et al. 2024,
    arXiv:2411.07641.
    """
    return tokens.at_least(tokens.largest() - n * sigma, min_keep)


def standard_deviation(logits: NDArray[np.float32]) -> float:
    """The standard deviation of the logits, those of banned tokens (-inf) left out, in float64."""
    present = logits if logits.min() > -np.inf else logits[logits > -np.inf]
    return float(present.std(dtype=np.float64))


def exclude_top_choices(tokens: Tokens, threshold: float, min_keep: int = 1) -> Tokens:
    """Bans all tokens of at least `threshold` probability but for the least likely of these, if there are two or more.

    Nothing is banned where fewer than `min_keep` tokens would be left. Origin: XTC, Weidmann 2024,
    https://github.com/oobabooga/text-generation-webui/pull/6335. Whether it happens at all is for the caller to draw.
    """
    most = len(tokens) if threshold * len(tokens) < 1 else int(1 / threshold) + 1
    likeliest = tokens.leading(most)
    n_above = int((weights(likeliest) / tokens.total() >= threshold).sum())
    if n_above < 2 or (min_keep > 1 and len(tokens.listed()) - (n_above - 1) < min_keep):
        return tokens
    return tokens.with_logits(likeliest.ids[: n_above - 1], np.full(n_above - 1, -np.inf))
