"""The passes over the vocabulary as they are defined: what `VocabularyOps` are tested against.

Logits are float32 [n_vocab]; -inf is a banned token, of which one at least is none. The reference backend itself runs
`NumpyVocabularyOps`, whose sums of exponentials are the same bits as everyone's.
"""

from __future__ import annotations

import math

from minfer.backends.reference.operands import Array32


def arg_max(logits: Array32) -> int:
    """The token of the largest logit, the lowest id among equals."""
    return max(range(len(logits)), key=lambda token: (logits[token], -token))


def top_k(logits: Array32, k: int) -> list[int]:
    """The first k tokens by descending logit, then by ascending id; none that is banned."""
    present = [token for token in range(len(logits)) if logits[token] > -math.inf]
    return sorted(present, key=lambda token: (-logits[token], token))[:k]


def exp_sum(logits: Array32, largest: float, scale: float = 1.0) -> float:
    """The sum of e**((logit - largest) * scale): each exponential within one unit in the last place, their sum exact.

    With scale 1, log-sum-exp is largest + log(exp_sum), and the softmax of a token is e**(logit - largest) / exp_sum.
    """
    return math.fsum(math.exp((logit - largest) * scale) for logit in logits.tolist())
