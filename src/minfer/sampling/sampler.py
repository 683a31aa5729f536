"""The sampler: one ordered pipeline from logits to a token, for one sequence.

    logits -> logit bias -> penalties -> DRY -> grammar -> top-k -> typical-p -> top-p -> min-p -> top-n-sigma -> XTC
           -> temperature -> draw (or mirostat's cut and draw)

The order is that of `SamplingParams.samplers`; stages that are off for the given parameters are left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.sampling.candidates import Tokens
from minfer.sampling.combinations import is_on
from minfer.sampling.draw import draw
from minfer.sampling.dry import SequenceBreakers
from minfer.sampling.grammar import Grammar
from minfer.sampling.mirostat import cut_by_exponent, cut_by_surprise, next_mu, surprise
from minfer.sampling.params import SamplingParams
from minfer.sampling.pipeline import STAGES, Step
from minfer.sampling.vocabulary import NumpyVocabularyOps, VocabularyOps
from minfer.sampling.whole import whole_vocabulary


@dataclass(frozen=True)
class SamplerState:
    """All that a sampler remembers between two tokens; JSON can hold its fields.

    Attributes:
        seed: of the random stream.
        n_uniforms: how many numbers were taken from it.
        mu: mirostat's; None without mirostat.
        grammar: the grammar's own; None without one.
    """

    seed: int
    n_uniforms: int
    mu: float | None
    grammar: object


class Sampler:
    """Chooses tokens of one sequence, one call a token.

    The random stream is PCG64 seeded with `seed`, one 53-bit uniform a token (with XTC, one more before it), taken from
    the generator's raw output, which NumPy promises to keep. So the same seed, parameters and logits give the same
    tokens on any machine, but for a uniform that falls within rounding error of the border between two tokens.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        *,
        ops: VocabularyOps | None = None,
        grammar: Grammar | None = None,
        dry_breakers: SequenceBreakers | None = None,
    ) -> None:
        """Makes a sampler for logits of shape (n_vocab,).

        Args:
            params: the parameters.
            n_vocab: the size of the vocabulary.
            ops: does the passes over the vocabulary; None is NumPy. Which it is changes no token.
            grammar: constrains the text; this sampler alone may tell it tokens.
            dry_breakers: the token ids of `params.dry_sequence_breakers` (see `find_breakers`); needed where DRY is on
                and there are any.

        Raises:
            ParameterError: `n_vocab` is below 1; `logit_bias` or `dry_breakers` names a token that is not in the
                vocabulary; there is a grammar, and `samplers` leaves it out; or `dry_breakers` is missing.
        """
        if n_vocab < 1:
            raise ParameterError(f"n_vocab is {n_vocab}; it must be at least 1")
        self._params = params
        self._n_vocab = n_vocab
        self._ops = NumpyVocabularyOps() if ops is None else ops
        self._grammar = grammar
        self._breakers = dry_breakers or SequenceBreakers()
        self._check_tokens()
        if grammar is not None and "grammar" not in params.samplers:
            raise ParameterError("there is a grammar, and samplers leaves that stage out; add grammar to it")
        if dry_breakers is None and params.dry_sequence_breakers and is_on(params, "dry"):
            raise ParameterError(
                "dry_sequence_breakers are texts, and the sampler has not been given their token ids (dry_breakers)"
            )
        self._names = tuple(
            name for name in params.samplers if is_on(params, name) or (name == "grammar" and grammar is not None)
        )
        self._stages = tuple(STAGES[name] for name in self._names)
        self._seed = secrets.randbits(64) if params.seed is None else params.seed
        self._bits = np.random.PCG64(self._seed)
        self._n_uniforms = 0
        self._mu = 2 * params.mirostat_tau

    @property
    def params(self) -> SamplingParams:
        """The parameters as given."""
        return self._params

    @property
    def seed(self) -> int:
        """The seed in use, also where the parameters have none: with it the run can be repeated."""
        return self._seed

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the stages that are active, in order, mirostat included; the draw follows them."""
        return (*self._names, f"mirostat_{self._params.mirostat}") if self._params.mirostat else self._names

    def sample(self, logits: NDArray[np.float32], history: Sequence[int]) -> int:
        """The next token.

        Args:
            logits: float32, shape (n_vocab,), not modified; -inf is allowed, and never drawn.
            history: the tokens so far, the oldest first; which ones count is for the caller to say (the prompt and
                what was generated, as a rule). Only the penalties and DRY look at it.

        Raises:
            ModelError: a logit is NaN or +inf, or all are -inf.
            ParameterError: the logits have the wrong shape or type, `logit_bias` or the grammar bans every token, or a
                token of the history is not in the vocabulary.
        """
        if logits.shape != (self._n_vocab,) or logits.dtype != np.float32:
            raise ParameterError(
                f"the logits are {logits.dtype} of shape {logits.shape}; float32 of shape ({self._n_vocab},) is needed"
            )
        tokens: Tokens = whole_vocabulary(np.ascontiguousarray(logits), self._ops)
        step = Step(
            self._params,
            logits,
            history,
            self._breakers,
            None if self._grammar is None else self._grammar.mask(),
            self._uniform() if "xtc" in self._names else 0.0,
        )
        for stage in self._stages:
            tokens = stage(tokens, step)
        token = self._draw_with_mirostat(tokens) if self._params.mirostat else draw(tokens, self._uniform())
        if self._grammar is not None:
            self._grammar.accept(token)
        return token

    def state(self) -> SamplerState:
        """What `restore` needs to go on from here with the same tokens, bit for bit."""
        mu = self._mu if self._params.mirostat else None
        grammar = None if self._grammar is None else self._grammar.state()
        return SamplerState(self._seed, self._n_uniforms, mu, grammar)

    def restore(self, state: SamplerState) -> None:
        """Goes on from a state of a sampler with the same parameters (but for the seed, which the state has).

        Raises:
            ParameterError: the state is one with mirostat or a grammar and this sampler is not, or the reverse.
        """
        for name, saved, here in (
            ("mirostat", state.mu is not None, self._params.mirostat != 0),
            ("a grammar", state.grammar is not None, self._grammar is not None),
        ):
            if saved != here:
                raise ParameterError(f"the state is of a sampler {_with(saved)} {name}, and this one is {_with(here)}")
        self._seed, self._n_uniforms = state.seed, state.n_uniforms
        self._bits = np.random.PCG64(state.seed).advance(state.n_uniforms)
        if state.mu is not None:
            self._mu = state.mu
        if self._grammar is not None:
            self._grammar.restore(state.grammar)

    def _draw_with_mirostat(self, tokens: Tokens) -> int:
        is_first = self._params.mirostat == 1
        cut = cut_by_exponent(tokens, self._mu, self._n_vocab) if is_first else cut_by_surprise(tokens, self._mu)
        token = draw(cut, self._uniform())
        self._mu = next_mu(self._mu, surprise(tokens, token), self._params.mirostat_tau, self._params.mirostat_eta)
        return token

    def _uniform(self) -> float:
        """The next number of the stream: in [0, 1), a multiple of 2**-53."""
        self._n_uniforms += 1
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def _check_tokens(self) -> None:
        breakers = (*self._breakers.single, *(token for longer in self._breakers.longer for token in longer))
        for name, tokens in (("logit_bias", self._params.logit_bias), ("dry_breakers", breakers)):
            for token in tokens:
                if not 0 <= token < self._n_vocab:
                    raise ParameterError(f"{name} names token {token}, but the vocabulary has {self._n_vocab} tokens")


def _with(present: bool) -> str:
    return "with" if present else "without"
