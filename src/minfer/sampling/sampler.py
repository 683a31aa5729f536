"""The sampler: one ordered pipeline from logits to a token.

    logits -> logit bias -> penalties -> top-k -> top-p -> min-p -> temperature -> draw

`STAGES` is that order, and the only place where it is written. A stage is a pure function of the candidates; stages
that are off for the given parameters are left out when a sampler is made.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ModelError, ParameterError
from minfer.sampling.adjust import add_logit_bias, penalise
from minfer.sampling.candidates import Candidates
from minfer.sampling.draw import apply_temperature, draw
from minfer.sampling.params import SamplingParams
from minfer.sampling.truncate import keep_min_p, keep_top_k, keep_top_p


@dataclass(frozen=True)
class Stage:
    """A step of the pipeline: `apply` maps the candidates, given the parameters and the tokens so far."""

    name: str
    is_active: Callable[[SamplingParams], bool]
    apply: Callable[[Candidates, SamplingParams, Sequence[int]], Candidates]


def _penalise(candidates: Candidates, params: SamplingParams, history: Sequence[int]) -> Candidates:
    return penalise(
        candidates,
        history,
        window=params.penalty_window,
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
    )


STAGES: tuple[Stage, ...] = (
    Stage("logit_bias", lambda p: bool(p.logit_bias), lambda c, p, _: add_logit_bias(c, p.logit_bias)),
    Stage("penalties", lambda p: p.has_penalties, _penalise),
    Stage("top_k", lambda p: p.top_k > 0, lambda c, p, _: keep_top_k(c, p.top_k)),
    Stage("top_p", lambda p: p.top_p < 1, lambda c, p, _: keep_top_p(c, p.top_p)),
    Stage("min_p", lambda p: p.min_p > 0, lambda c, p, _: keep_min_p(c, p.min_p)),
    Stage("temperature", lambda p: p.temperature != 1, lambda c, p, _: apply_temperature(c, p.temperature)),
)


class Sampler:
    """Chooses tokens of one sequence, one call a token.

    The random stream is PCG64 seeded with `seed`, one 53-bit uniform a token, taken from the generator's raw output
    (which NumPy promises to keep). So the same seed, parameters and logits give the same tokens on any machine,
    but for a uniform that falls within rounding error of the border between two tokens.
    """

    def __init__(self, params: SamplingParams, n_vocab: int) -> None:
        """Makes a sampler for logits of shape (n_vocab,).

        Raises:
            ParameterError: `n_vocab` is below 1, or `logit_bias` names a token that is not in the vocabulary.
        """
        if n_vocab < 1:
            raise ParameterError(f"n_vocab is {n_vocab}; it must be at least 1")
        for token in params.logit_bias:
            if token >= n_vocab:
                raise ParameterError(f"logit_bias names token {token}, but the vocabulary has {n_vocab} tokens")
        self._params = params
        self._ids = np.arange(n_vocab, dtype=np.int64)
        self._ids.flags.writeable = False
        self._seed = secrets.randbits(64) if params.seed is None else params.seed
        self._bits = np.random.PCG64(self._seed)
        self._effective = _greedy(params) if params.is_greedy else params
        self._stages = tuple(stage for stage in STAGES if stage.is_active(self._effective))

    @property
    def params(self) -> SamplingParams:
        """The parameters as given."""
        return self._params

    @property
    def seed(self) -> int:
        """The seed in use, also where the parameters have none: with it the run can be repeated."""
        return self._seed

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that are active, in order; the draw follows them."""
        return self._stages

    def sample(self, logits: NDArray[np.float32], history: Sequence[int]) -> int:
        """The next token.

        Args:
            logits: float32, shape (n_vocab,), not modified; -inf is allowed, and never drawn.
            history: the tokens so far, the oldest first; which ones count is for the caller to say (the prompt and
                what was generated, as a rule). Only the penalties look at it.

        Raises:
            ModelError: a logit is NaN or +inf, or all are -inf.
            ParameterError: the logits have the wrong shape or type, `logit_bias` bans every token, or a token of the
                history is not in the vocabulary.
        """
        self._check(logits)
        candidates = Candidates(self._ids, logits.astype(np.float64))
        for stage in self._stages:
            candidates = stage.apply(candidates, self._effective, history)
        return draw(candidates, self._uniform())

    def _uniform(self) -> float:
        """The next number of the stream: in [0, 1), a multiple of 2**-53."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def _check(self, logits: NDArray[np.float32]) -> None:
        if logits.shape != self._ids.shape or not np.issubdtype(logits.dtype, np.floating):
            raise ParameterError(
                f"the logits are {logits.dtype} of shape {logits.shape}; floats of shape {self._ids.shape} are needed"
            )
        largest = logits.max()  # NaN if any is
        if np.isfinite(largest):
            return
        if largest == -np.inf:
            raise ModelError("the model's logits are all -inf, so that there is no token to draw")
        wrong = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
        raise ModelError(
            f"the model computed a logit of {logits[wrong[0]]} for token {wrong[0]} ({len(wrong)} of {len(logits)} "
            f"logits are NaN or inf); its weights are damaged, or a computation overflowed"
        )


def _greedy(params: SamplingParams) -> SamplingParams:
    """Greedy as a case of the pipeline: top-k with k = 1, and since every truncation keeps the likeliest, no other."""
    return replace(params, temperature=1.0, top_k=1, top_p=1.0, min_p=0.0)
