"""The whole vocabulary as `Tokens`, without a list of it: float32 logits as the model gave them, and what changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from minfer.sampling.candidates import Candidates, Tokens
from minfer.sampling.vocabulary import VocabularyOps

_MOST = float(np.finfo(np.float32).max)
_FEW = 16
"""Up to this part of the vocabulary is listed where a stage leaves no more; else the rest is banned."""
_ROUNDING = 2.0**-50
"""Relative, and more than a multiplication and an addition are off by."""


@dataclass(frozen=True, eq=False)
class WholeVocabulary:
    """Every token; see `Tokens`.

    Few tokens have other logits than the model gave them (a bias, penalties). Those are kept beside, in float64, and
    banned in a copy of the rest, so that the passes over the vocabulary are those of `VocabularyOps`. The logit of a
    token of the rest is `(logits[token] - shift) / temperature`.

    Attributes:
        logits: float32, shape (n_vocab,); never written to.
        ops: does the passes over the vocabulary.
        best: the token with the largest of `logits`, the lowest id among equals.
        changed_ids: int64, ascending: the tokens that have another logit.
        changed_logits: float64: these.
        shift: see above.
        temperature: see above.
    """

    logits: NDArray[np.float32]
    ops: VocabularyOps
    best: int
    changed_ids: NDArray[np.int64]
    changed_logits: NDArray[np.float64]
    shift: float = 0.0
    temperature: float = 1.0

    def __len__(self) -> int:
        return len(self.logits)

    def largest(self) -> float:
        if not len(self.changed_ids):
            return self._logit(float(self.logits[self.best]))
        return max(self._logit(float(self._unchanged.max())), float(self.changed_logits.max()))

    def total(self) -> float:
        return self._total

    def leading(self, n: int) -> Candidates:
        if n == 1 and not len(self.changed_ids):
            return self._unchanged_candidates(np.array([self.best], np.int64))
        ids = self.ops.top_k(self._unchanged, min(n, len(self)))
        return self._with_changed(ids).leading(n) if len(self.changed_ids) else self._unchanged_candidates(ids)

    def at_least(self, logit: float, min_keep: int = 1) -> Tokens:
        # The logits as given are compared with two float32, below and above the threshold; float64 decides between.
        scaled = logit * self.temperature
        rounding = (abs(scaled) + abs(self.shift)) * _ROUNDING
        below = _next_float32(scaled + self.shift - rounding, -_MOST)
        above = _next_float32(scaled + self.shift + rounding, _MOST)
        reaches = self._unchanged >= below
        near = np.flatnonzero(reaches & (self._unchanged <= above))
        reaches[near] = self._unchanged_candidates(near).logits >= logit
        kept_changed = self.changed_logits >= logit
        n_kept = int(np.count_nonzero(reaches)) + int(np.count_nonzero(kept_changed))
        if n_kept < min_keep:
            return self.leading(min_keep)
        left = replace(self, changed_logits=np.where(kept_changed, self.changed_logits, -np.inf))
        if n_kept * _FEW < len(self):
            return left._with_changed(np.flatnonzero(reaches)).listed()
        return replace(left, logits=np.where(reaches, self._unchanged, np.float32(-np.inf)))

    def listed(self) -> Candidates:
        return self._with_changed(np.flatnonzero(self._unchanged > -np.inf)).listed()

    def tempered(self, temperature: float) -> Tokens:
        if (self.shift, self.temperature) != (0.0, 1.0) or math.isinf(1 / temperature):
            return self.listed().tempered(temperature)
        shift = self.largest()
        with np.errstate(over="ignore"):  # as for `Candidates`
            changed_logits = (self.changed_logits - shift) / temperature
        return replace(self, changed_logits=changed_logits, shift=shift, temperature=temperature)

    def logits_of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        found = self._unchanged_candidates(ids).logits
        if len(self.changed_ids):
            places = np.minimum(np.searchsorted(self.changed_ids, ids), len(self.changed_ids) - 1)
            found = np.where(self.changed_ids[places] == ids, self.changed_logits[places], found)
        return found

    def with_logits(self, ids: NDArray[np.int64], logits: NDArray[np.float64]) -> WholeVocabulary:
        if not len(self.changed_ids):
            order = np.argsort(ids)
            return replace(self, changed_ids=ids[order], changed_logits=logits[order])
        kept = ~np.isin(self.changed_ids, ids)
        all_ids = np.concatenate([self.changed_ids[kept], ids])
        all_logits = np.concatenate([self.changed_logits[kept], logits])
        order = np.argsort(all_ids)
        return replace(self, changed_ids=all_ids[order], changed_logits=all_logits[order])

    def masked(self, allowed: NDArray[np.bool_]) -> WholeVocabulary:
        logits = np.where(allowed, self.logits, np.float32(-np.inf))
        changed_logits = np.where(allowed[self.changed_ids], self.changed_logits, -np.inf)
        return replace(self, logits=logits, best=int(logits.argmax()), changed_logits=changed_logits)

    @cached_property
    def _unchanged(self) -> NDArray[np.float32]:
        """The logits as given, with the tokens banned that have another one."""
        if not len(self.changed_ids):
            return self.logits
        unchanged = self.logits.copy()
        unchanged[self.changed_ids] = -np.inf
        return unchanged

    @cached_property
    def _total(self) -> float:
        largest = self.largest()
        as_given = self.shift + largest * self.temperature  # what `_logit` makes `largest` of, but for rounding
        total = self.ops.exp_sum(self._unchanged, as_given, 1 / self.temperature)
        return total + float(np.exp(self.changed_logits - largest).sum())

    def _logit(self, as_given: float) -> float:
        return (as_given - self.shift) / self.temperature

    def _unchanged_candidates(self, ids: NDArray[np.int64]) -> Candidates:
        """Tokens with the logits that they have unless they were changed."""
        with np.errstate(over="ignore"):  # as for `Candidates`
            return Candidates(ids, (self.logits[ids].astype(np.float64) - self.shift) / self.temperature)

    def _with_changed(self, ids: NDArray[np.int64]) -> Candidates:
        """Tokens that have not changed, and all that have."""
        some = self._unchanged_candidates(ids)
        if not len(self.changed_ids):
            return some
        return Candidates(
            np.concatenate([some.ids, self.changed_ids]), np.concatenate([some.logits, self.changed_logits])
        )


def _next_float32(x: float, towards: float) -> np.float32:
    """The float32 next to x, in the direction of -_MOST or _MOST."""
    nearest = np.float32(min(max(x, -_MOST), _MOST))
    return np.float32(np.nextafter(nearest, np.float32(towards)))


def whole_vocabulary(logits: NDArray[np.float32], ops: VocabularyOps) -> WholeVocabulary:
    """All tokens, with the logits that the model gave them.

    Raises:
        ModelError: a logit is NaN or +inf, or all are -inf.
    """
    return WholeVocabulary(logits, ops, ops.arg_max(logits), np.empty(0, np.int64), np.empty(0))
