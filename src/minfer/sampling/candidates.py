"""The tokens that may still be drawn, and their fixed order.

The order is by descending logit, ties by lower token id. It is total, so a cut or a draw is the same on every machine.
`Tokens` is what the stages of the pipeline see: either `Candidates`, a list of tokens with their logits, or, until a
stage has cut it down, the whole vocabulary (`whole.py`), which is not listed where that can be avoided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.sampling.vocabulary import threshold

_SORTED_WHOLE = 4
FIRST_PREFIX = 64
PREFIX_GROWTH = 16
"""How many tokens a cut looks at first, and how many times more where they do not reach it."""


class Tokens(Protocol):
    """Tokens with their logits, float64: finite, or -inf for a token that is banned. One at least is not banned."""

    def __len__(self) -> int:
        """How many there are, banned ones included."""
        ...

    def largest(self) -> float:
        """The largest logit; -inf only where a stage has just banned the last token, and must say so."""
        ...

    def total(self) -> float:
        """The sum of e**(logit - largest logit): what makes probabilities of `weights`."""
        ...

    def leading(self, n: int) -> Candidates:
        """The first `n` >= 1 in the fixed order, in that order; fewer where fewer are not banned."""
        ...

    def at_least(self, logit: float, min_keep: int = 1) -> Tokens:
        """Those with at least that logit, which is finite; or `leading(min_keep)`, where they are fewer than that."""
        ...

    def listed(self) -> Candidates:
        """All that are not banned, in any order."""
        ...

    def tempered(self, temperature: float) -> Tokens:
        """The same with every logit relative to the largest, and divided by `temperature` > 0."""
        ...

    def logits_of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The logits of some tokens; -inf for one that is not here any more."""
        ...

    def with_logits(self, ids: NDArray[np.int64], logits: NDArray[np.float64]) -> Tokens:
        """The same with other logits for some tokens, no two alike; what is not here any more stays away."""
        ...

    def masked(self, allowed: NDArray[np.bool_]) -> Tokens:
        """The same with every token banned whose entry in `allowed`, shape (n_vocab,), is false."""
        ...


@dataclass(frozen=True, eq=False)
class Candidates:
    """Tokens as a list; see `Tokens`.

    Attributes:
        ids: token ids, int64, shape (n_candidates,), no two alike.
        logits: float64, shape (n_candidates,).
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)

    def largest(self) -> float:
        return float(self.logits.max())

    def total(self) -> float:
        return float(weights(self).sum())

    def leading(self, n: int) -> Candidates:
        kept = self.listed()
        if _SORTED_WHOLE * n < len(kept):  # only what reaches a threshold is sorted
            kept = select(kept, kept.logits >= threshold(kept.logits, n))
        return select(kept, np.lexsort((kept.ids, -kept.logits))[:n])

    def at_least(self, logit: float, min_keep: int = 1) -> Candidates:
        reaches = self.logits >= logit
        return select(self, reaches) if reaches.sum() >= min_keep else self.leading(min_keep)

    def listed(self) -> Candidates:
        banned = self.logits == -np.inf
        return select(self, ~banned) if banned.any() else self

    def tempered(self, temperature: float) -> Candidates:
        with np.errstate(over="ignore"):  # a candidate far below the largest becomes -inf, that is, probability 0
            return Candidates(self.ids, (self.logits - self.logits.max()) / temperature)

    def logits_of(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        places, found = self._find(ids)
        return np.where(found, self.logits[places], -np.inf)

    def with_logits(self, ids: NDArray[np.int64], logits: NDArray[np.float64]) -> Candidates:
        places, found = self._find(ids)
        changed = self.logits.copy()
        changed[places[found]] = logits[found]
        return Candidates(self.ids, changed)

    def masked(self, allowed: NDArray[np.bool_]) -> Candidates:
        return Candidates(self.ids, np.where(allowed[self.ids], self.logits, -np.inf))

    def _find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Where each of `ids` is, and whether it is there at all."""
        order = np.argsort(self.ids)
        places = order[np.minimum(np.searchsorted(self.ids, ids, sorter=order), len(order) - 1)]
        return places, self.ids[places] == ids


def select(candidates: Candidates, index: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Candidates:
    """The candidates at `index` (a mask, positions or a slice), in its order."""
    return Candidates(candidates.ids[index], candidates.logits[index])


def weights(candidates: Candidates) -> NDArray[np.float64]:
    """Probabilities up to a common factor, float64, shape (n_candidates,): softmax without its division.

    The likeliest candidate weighs exactly 1, and equal logits weigh exactly the same.
    """
    relative: NDArray[np.float64] = np.exp(candidates.logits - candidates.logits.max())
    return relative


def nucleus(tokens: Tokens, share: float, min_keep: int = 1) -> Candidates:
    """The shortest beginning of the fixed order that holds at least `share` of the probability, and `min_keep` tokens.

    None of them is banned. `share` is in (0, 1].
    """
    target = share * tokens.total()
    n = max(FIRST_PREFIX, min_keep)
    while True:
        prefix = tokens.leading(n)
        cumulative = np.cumsum(weights(prefix))
        if cumulative[-1] >= target or n >= len(tokens):
            break
        n *= PREFIX_GROWTH
    # Summed in another order, the total can differ from the last cumulative weight in its last bits.
    reached = int(np.searchsorted(cumulative, min(target, float(cumulative[-1])), side="left")) + 1
    return select(prefix, slice(0, max(reached, min_keep)))
