"""The passes over the whole vocabulary: what they are, and how NumPy does them.

A vocabulary has up to some 250,000 tokens, and nearly all of a sampler's time goes where all of them are looked at.
These operations are all that does, as long as the parameters are near the defaults; a backend may offer faster ones.
"""

from __future__ import annotations

from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ModelError
from minfer.sampling.exponentials import exp_sum

_MIN_GROUPS = 1024
_GROUPS_PER_TOKEN = 8


class VocabularyOps(Protocol):
    """What is computed of logits, float32 [n_vocab], contiguous; the same result, bit for bit, whoever does it.

    A logit may be -inf: a token that is banned. All raise ModelError where a logit is NaN or +inf.
    """

    def arg_max(self, logits: NDArray[np.float32]) -> int:
        """The token of the largest logit, the lowest id among equals.

        Raises:
            ModelError: all are -inf.
        """
        ...

    def top_k(self, logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """The tokens of the `k` >= 1 largest logits, by descending logit, then by ascending id; none that is banned.

        There are fewer where fewer are not banned.
        """
        ...

    def exp_sum(self, logits: NDArray[np.float32], largest: float, scale: float = 1.0) -> float:
        """The sum of e**((logit - largest) * scale), as `exponentials.py` defines it.

        `largest` is finite and no logit is above it; `scale`, the inverse of a temperature, is finite and positive.
        With scale 1, the softmax of a token is e**(logit - largest) / exp_sum, and log-sum-exp is
        largest + log(exp_sum).
        """
        ...


class NumpyVocabularyOps:
    """`VocabularyOps` by NumPy."""

    def arg_max(self, logits: NDArray[np.float32]) -> int:
        best = int(logits.argmax())  # a NaN, if there is any
        if not np.isfinite(logits[best]):
            refuse(logits)
        return best

    def top_k(self, logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        _check(logits)
        least = threshold(logits, k)
        return in_order(logits, np.flatnonzero(logits >= least if least > -np.inf else logits > least), k)

    def exp_sum(self, logits: NDArray[np.float32], largest: float, scale: float = 1.0) -> float:
        _check(logits)
        with np.errstate(over="ignore"):  # what is far below the largest adds 0
            return exp_sum(logits, largest, scale)


def threshold(logits: NDArray[np.floating], n: int) -> float:
    """A value that the `n` largest logits reach, and few others do; -inf where there are fewer than `n`.

    The logits are dealt into interleaved groups, but for a rest of less than one round; see `nth_largest`.
    """
    n_groups = groups_for(n)
    if 2 * n_groups > len(logits):
        return nth_largest(logits, n)
    return nth_largest(logits[: len(logits) // n_groups * n_groups].reshape(-1, n_groups).max(axis=0), n)


def groups_for(n: int) -> int:
    """Into how many groups at least to deal the logits, so that few exceed the n-th largest of the groups' maxima."""
    return max(_MIN_GROUPS, _GROUPS_PER_TOKEN * n)


def nth_largest(maxima: NDArray[np.floating], n: int) -> float:
    """The n-th largest of the maxima of groups, or -inf where there are fewer groups than `n`.

    At least n elements reach it, one in each of n groups; so the n largest of all elements do, and with many groups
    few others. Maxima of groups are many times faster than a partition of all elements.
    """
    if n > len(maxima):
        return -np.inf
    return float(np.partition(maxima, len(maxima) - n)[len(maxima) - n])


def in_order(logits: NDArray[np.float32], tokens: NDArray[np.signedinteger], k: int) -> NDArray[np.int64]:
    """The first `k` of some tokens, given by ascending id: by descending logit, then by ascending id."""
    order = np.argsort(-logits[tokens], kind="stable")
    return tokens[order[:k]].astype(np.int64, copy=False)


def _check(logits: NDArray[np.float32]) -> None:
    largest = logits.max()  # NaN if any is
    if np.isnan(largest) or largest == np.inf:
        refuse(logits)


def refuse(logits: NDArray[np.float32]) -> NoReturn:
    """Says what is wrong with logits in which some are NaN or +inf, or all -inf.

    Raises:
        ModelError: always; names the first token that is concerned.
    """
    wrong = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
    if not wrong.size:
        raise ModelError("the model's logits are all -inf, so that there is no token to draw")
    raise ModelError(
        f"the model computed a logit of {logits[wrong[0]]} for token {wrong[0]} ({len(wrong)} of {len(logits)} "
        f"logits are NaN or inf); its weights are damaged, or a computation overflowed"
    )
