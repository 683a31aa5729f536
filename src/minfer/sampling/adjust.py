"""Stages that change logits of single tokens: the logit bias and the penalties for tokens seen before.

Both take the whole vocabulary in the order of its ids (`ids[i] == i`), so that a token is found without a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.sampling.candidates import Candidates


def add_logit_bias(candidates: Candidates, logit_bias: Mapping[int, float]) -> Candidates:
    """Adds to the logits of the tokens named; -inf bans a token.

    Origin: the `logit_bias` of the OpenAI API. The ids must be in the vocabulary.

    Raises:
        ParameterError: no token is left to draw.
    """
    tokens = np.fromiter(logit_bias.keys(), np.int64, len(logit_bias))
    logits = candidates.logits.copy()
    logits[tokens] += np.fromiter(logit_bias.values(), np.float64, len(logit_bias))
    if logits.max() == -np.inf:
        raise ParameterError(f"logit_bias bans every token that is left to draw ({len(tokens)} biases); remove some")
    return Candidates(candidates.ids, logits)


def penalise(
    candidates: Candidates,
    history: Sequence[int],
    *,
    window: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> Candidates:
    """Lowers (or, for encouraging values, raises) the logits of the tokens in the last `window` of `history`.

    First the repetition penalty, which divides a positive logit and multiplies a negative one (CTRL: Keskar et al.
    2019, arXiv:1909.05858, which divides always; by the sign, a penalty lowers either), then the frequency penalty for
    each occurrence and the presence penalty once (both from the OpenAI API). `window` -1 is the whole history.

    Raises:
        ParameterError: a token of the window is not in the vocabulary, or a logit is driven to infinity.
    """
    tokens, n_seen = _count(history if window == -1 else history[max(0, len(history) - window) :], len(candidates))
    before = candidates.logits[tokens]
    with np.errstate(over="ignore"):  # an overflow is reported below, by name
        after = np.where(before > 0, before / repetition, before * repetition) - n_seen * frequency - presence
    overflowed = np.isfinite(before) & ~np.isfinite(after)
    if overflowed.any():
        raise ParameterError(
            f"repetition_penalty {repetition!r} drives the logit of token {tokens[overflowed][0]} to infinity; "
            f"use a value near 1"
        )
    logits = candidates.logits.copy()
    logits[tokens] = after
    return Candidates(candidates.ids, logits)


def _count(history: Sequence[int], n_vocab: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    tokens, n_seen = np.unique(np.asarray(history, dtype=np.int64), return_counts=True)
    if tokens.size and (tokens[0] < 0 or tokens[-1] >= n_vocab):
        wrong = tokens[0] if tokens[0] < 0 else tokens[-1]
        raise ParameterError(f"token {wrong} of the history is not in the vocabulary of {n_vocab} tokens")
    return tokens, n_seen.astype(np.int64)
