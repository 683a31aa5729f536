"""Stages that change logits of single tokens: the logit bias and the penalties for tokens seen before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.sampling.candidates import Tokens


def add_logit_bias(tokens: Tokens, logit_bias: Mapping[int, float]) -> Tokens:
    """Adds to the logits of the tokens named; -inf bans a token.

    Origin: the `logit_bias` of the OpenAI API. The ids must be in the vocabulary.

    Raises:
        ParameterError: no token is left to draw.
    """
    ids = np.fromiter(logit_bias.keys(), np.int64, len(logit_bias))
    biases = np.fromiter(logit_bias.values(), np.float64, len(logit_bias))
    biased = tokens.with_logits(ids, tokens.logits_of(ids) + biases)
    if biases.min() == -np.inf and biased.largest() == -np.inf:
        raise ParameterError(f"logit_bias bans every token that is left to draw ({len(ids)} biases); remove some")
    return biased


def penalise(
    tokens: Tokens,
    history: Sequence[int],
    n_vocab: int,
    *,
    window: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> Tokens:
    """Lowers (or, for encouraging values, raises) the logits of the tokens in the last `window` of `history`.

    First the repetition penalty, which divides a positive logit and multiplies a negative one (CTRL: Keskar et al.
    2019, arXiv:1909.05858, which divides always; by the sign, a penalty lowers either), then the frequency penalty for
    each occurrence and the presence penalty once (both from the OpenAI API). `window` -1 is the whole history.

    Raises:
        ParameterError: a token of the window is not in the vocabulary, or a logit is driven to infinity.
    """
    ids, n_seen = np.unique(last_tokens(history, window, n_vocab), return_counts=True)
    before = tokens.logits_of(ids)
    with np.errstate(over="ignore"):  # an overflow is reported below, by name
        after = np.where(before > 0, before / repetition, before * repetition) - n_seen * frequency - presence
    overflowed = np.isfinite(before) & ~np.isfinite(after)
    if overflowed.any():
        raise ParameterError(
            f"repetition_penalty {repetition!r} drives the logit of token {ids[overflowed][0]} to infinity; "
            f"use a value near 1"
        )
    return tokens.with_logits(ids, after)


def last_tokens(history: Sequence[int], n: int, n_vocab: int) -> NDArray[np.int64]:
    """The last `n` tokens of the history, or all for -1, as int64.

    Raises:
        ParameterError: one of them is not in the vocabulary.
    """
    window = np.asarray(history if n == -1 else history[max(0, len(history) - n) :], dtype=np.int64)
    wrong = window[(window < 0) | (window >= n_vocab)]
    if wrong.size:
        raise ParameterError(f"token {wrong[0]} of the history is not in the vocabulary of {n_vocab} tokens")
    return window
