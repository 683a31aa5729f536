"""Small distributions for tests of the sampler, as a list of candidates and as a whole vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from minfer.sampling import Candidates, NumpyVocabularyOps, Tokens
from minfer.sampling.whole import WholeVocabulary, whole_vocabulary

INF = math.inf


def listed(logits: Sequence[float] | NDArray[np.floating]) -> Candidates:
    """Token i with logit i, as candidates."""
    return Candidates(np.arange(len(logits), dtype=np.int64), np.array(logits, dtype=np.float64))


def whole(logits: Sequence[float] | NDArray[np.floating]) -> WholeVocabulary:
    """Token i with logit i, rounded to float32, as a vocabulary."""
    return whole_vocabulary(f32(*logits), NumpyVocabularyOps())


def changed(logits: Sequence[float] | NDArray[np.floating]) -> WholeVocabulary:
    """The same, where every other logit was another one before."""
    values = f32(*logits)
    ids = np.arange(0, len(values), 2)
    before = values.copy()
    before[ids] = -3.0 - ids
    return whole_vocabulary(before, NumpyVocabularyOps()).with_logits(ids, values[ids].astype(np.float64))


def tempered(logits: Sequence[float] | NDArray[np.floating]) -> Tokens:
    """The same, of logits half as large, as if a temperature of 1/2 had been applied to them."""
    return replace(whole_vocabulary(f32(*logits) / 2, NumpyVocabularyOps()), temperature=0.5)


KINDS: tuple[Callable[[Sequence[float]], Tokens], ...] = (listed, whole, changed, tempered)
"""Every way for tokens to come to a stage."""


def log(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def ids_of(candidates: Tokens) -> list[int]:
    """The tokens that are not banned, in the order in which they are listed."""
    return candidates.listed().ids.tolist()


def logits_of(tokens: Tokens, n_tokens: int) -> list[float]:
    """The logits of tokens 0 to n_tokens - 1; -inf for one that is not there."""
    return tokens.logits_of(np.arange(n_tokens)).tolist()
