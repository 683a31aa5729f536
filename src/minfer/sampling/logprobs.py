"""Log probabilities of tokens in the raw distribution of the model, before any stage of the sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.sampling.vocabulary import NumpyVocabularyOps, VocabularyOps


@dataclass(frozen=True)
class TokenLogprobs:
    """What the model thought of a token at the place where it stands.

    Attributes:
        token: the token's id.
        logprob: the natural logarithm of its probability; -inf for a token whose logit is.
        top: the likeliest tokens there with theirs, the likeliest first, among equals the lower id; none that the
            model bans. The token itself is among them if it is one of these.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(
    logits: NDArray[np.float32], token: int, n_top: int, ops: VocabularyOps | None = None
) -> TokenLogprobs:
    """The log probability of a token, and of the `n_top` likeliest ones.

    Args:
        logits: float32, shape (n_vocab,), contiguous: those that the token was drawn from.
        token: the token that was chosen.
        n_top: 0 to n_vocab.
        ops: does the passes over the vocabulary; None is NumPy. Which it is changes no bit.

    Raises:
        ParameterError: `token` or `n_top` is out of its range.
        ModelError: a logit is NaN or +inf, or all are -inf.
    """
    if not 0 <= token < len(logits):
        raise ParameterError(f"token {token} is not in the vocabulary of {len(logits)} tokens")
    if not 0 <= n_top <= len(logits):
        raise ParameterError(f"n_top is {n_top}; it must be from 0 to the size of the vocabulary, {len(logits)}")
    ops = NumpyVocabularyOps() if ops is None else ops
    largest = float(logits[ops.arg_max(logits)])
    log_sum = math.log(ops.exp_sum(logits, largest))

    def logprob(of: int) -> float:
        return float(logits[of]) - largest - log_sum

    likeliest = ops.top_k(logits, n_top).tolist() if n_top else []
    return TokenLogprobs(token, logprob(token), tuple((each, logprob(each)) for each in likeliest))
