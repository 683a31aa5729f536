"""Mirostat: cuts so that the surprise of the text stays near a target. Source: Basu et al. 2020, arXiv:2007.14966.

The surprise of a token is -log2 of its probability before the cut, as in the paper and its authors' code. Each token
drawn moves `mu`, which says how much surprise the next cut allows and begins at twice the target.
"""

from __future__ import annotations

import math

import numpy as np

from minfer.sampling.candidates import Tokens

_LN2 = math.log(2.0)
_N_ESTIMATED = 100
"""Tokens that the exponent is estimated from, m in the paper."""


def cut_by_exponent(tokens: Tokens, mu: float, n_vocab: int) -> Tokens:
    """Mirostat 1: the k likeliest tokens, where k is what a Zipf distribution needs for an expected surprise of `mu`.

    Its exponent s is estimated from the likeliest tokens; k = (e * 2^mu / (1 - n_vocab^-e))^(1/s) with e = s - 1,
    rounded down, but at least 1.
    """
    head = tokens.leading(_N_ESTIMATED)
    if len(head) == 1:
        return head
    ranks = np.arange(1.0, len(head))
    steps = np.log((ranks + 1) / ranks)
    exponent = float(-(steps * np.diff(head.logits)).sum() / (steps * steps).sum())
    k = _k_for(mu, exponent, n_vocab, len(tokens))
    return tokens if k == len(tokens) else tokens.leading(k)  # no cut needs no order


def cut_by_surprise(tokens: Tokens, mu: float) -> Tokens:
    """Mirostat 2: the tokens whose surprise is at most `mu`, or the likeliest one where there is none."""
    return tokens.at_least(tokens.largest() + math.log(tokens.total()) - mu * _LN2)


def surprise(tokens: Tokens, token: int) -> float:
    """The surprise of a token among the tokens before the cut, in bits."""
    logit = float(tokens.logits_of(np.array([token], np.int64))[0])
    return (math.log(tokens.total()) - (logit - tokens.largest())) / _LN2


def next_mu(mu: float, observed: float, tau: float, eta: float) -> float:
    """`mu` for the next token: against the error of the surprise observed, by the learning rate."""
    return mu - eta * (observed - tau)


def _k_for(mu: float, exponent: float, n_vocab: int, most: int) -> int:
    """k of mirostat 1, at most `most`."""
    if exponent <= 0:  # all alike: no number of tokens is surprising enough
        return most
    excess = exponent - 1
    x = excess * math.log(n_vocab)
    # excess / (1 - n_vocab^-excess), whose limit at exponent 1 is 1 / log(n_vocab).
    factor = excess / -math.expm1(-x) if x else 1 / math.log(n_vocab)
    log_k = (math.log(factor) + mu * _LN2) / exponent
    return most if log_k >= math.log(most) else max(1, int(math.exp(log_k)))
