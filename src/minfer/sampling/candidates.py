"""The tokens that may still be drawn, and their fixed order.

The order is by descending logit, ties by lower token id. It is total, so a cut or a draw is the same on every machine.
A vocabulary has up to some 250,000 tokens and a cut keeps tens, so the order is never made for more tokens than needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FIRST_PREFIX = 64
_PREFIX_GROWTH = 16
_MIN_GROUPS = 1024
_GROUPS_PER_CANDIDATE = 8


@dataclass(frozen=True, eq=False)
class Candidates:
    """Tokens with their logits. Never empty, and at least one logit is finite.

    Attributes:
        ids: token ids, int64, shape (n_candidates,), no two alike.
        logits: float64, shape (n_candidates,); finite, or -inf for a banned token.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ids)


def select(candidates: Candidates, index: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Candidates:
    """The candidates at `index` (a mask, positions or a slice), in its order."""
    return Candidates(candidates.ids[index], candidates.logits[index])


def leading(candidates: Candidates, n: int) -> Candidates:
    """The first `n` candidates in the fixed order, or all if there are fewer; tokens that are banned may be left out.

    Only what reaches a threshold is sorted.
    """
    if n < len(candidates):
        threshold = _threshold(candidates.logits, n)
        reaches = candidates.logits >= threshold if threshold > -np.inf else candidates.logits > threshold
        candidates = select(candidates, reaches)
    order = np.lexsort((candidates.ids, -candidates.logits))
    return select(candidates, order[:n])


def weights(candidates: Candidates) -> NDArray[np.float64]:
    """Probabilities up to a common factor, float64, shape (n_candidates,): softmax without its division.

    The likeliest candidate weighs exactly 1, and equal logits weigh exactly the same.
    """
    relative: NDArray[np.float64] = np.exp(candidates.logits - candidates.logits.max())
    return relative


def nucleus(candidates: Candidates, share: float) -> Candidates:
    """The shortest beginning of the fixed order that holds at least `share` of the probability.

    Its last candidate is never a banned one. `share` is in (0, 1].
    """
    total = float(weights(candidates).sum())
    n = _FIRST_PREFIX
    while True:
        prefix = leading(candidates, n)
        cumulative = np.cumsum(weights(prefix))
        if cumulative[-1] >= share * total or n >= len(candidates):
            break
        n *= _PREFIX_GROWTH
    # Summed in another order, the total can differ from the last cumulative weight in its last bits.
    target = min(share * total, float(cumulative[-1]))
    return select(prefix, slice(0, int(np.searchsorted(cumulative, target, side="left")) + 1))


def _threshold(logits: NDArray[np.float64], n: int) -> float:
    """A value that the `n` largest logits reach, and few others do; -inf where fewer than `n` are not banned.

    With the logits dealt into interleaved groups (but for a rest of less than one round), it is the n-th largest of
    the groups' maxima: n groups have an element that reaches it, hence so do the n largest of all elements. These
    maxima are many times faster than a partition.
    """
    n_groups = max(_MIN_GROUPS, _GROUPS_PER_CANDIDATE * n)
    if 2 * n_groups <= len(logits):
        in_groups = logits[: len(logits) // n_groups * n_groups]
        logits = in_groups.reshape(-1, n_groups).max(axis=0)
    return float(np.partition(logits, len(logits) - n)[len(logits) - n])
