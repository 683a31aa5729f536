"""Samplers for a model: what they need to know of its vocabulary, found once."""

from __future__ import annotations

from minfer.engine.answer import Answer, GenerationRequest
from minfer.engine.default_sampling import DefaultSampling
from minfer.sampling import (
    NumpyVocabularyOps,
    Sampler,
    SamplingParams,
    SequenceBreakers,
    VocabularyOps,
    find_breakers,
)
from minfer.text import Tokenizer


class Samplers:
    """Makes the samplers of a model, and answers that use them. Safe to use from several threads."""

    def __init__(
        self, tokenizer: Tokenizer, ops: VocabularyOps | None = None, defaults: DefaultSampling | None = None
    ) -> None:
        """
        Args:
            ops: does the passes over the vocabulary; None is NumPy.
            defaults: what applies where nobody says otherwise; None is the defaults of `SamplingParams`.
        """
        self.defaults = defaults or DefaultSampling()
        self._tokenizer = tokenizer
        self.ops = ops or NumpyVocabularyOps()
        self._breakers: dict[tuple[str, ...], SequenceBreakers] = {}

    def make(self, params: SamplingParams) -> Sampler:
        """A new sampler.

        Raises:
            ParameterError: `params` name a token that is not in the vocabulary.
        """
        needs_breakers = params.dry_multiplier > 0
        breakers = self._find_breakers(params.dry_sequence_breakers) if needs_breakers else None
        return Sampler(params, self._tokenizer.n_vocab, ops=self.ops, dry_breakers=breakers)

    def answer(self, request: GenerationRequest, sampler: Sampler | None = None) -> Answer:
        """A new answer, with a new sampler unless one is given.

        Raises:
            ParameterError: the request names a token that is not in the vocabulary, or an empty stop string.
        """
        return Answer(self._tokenizer, sampler or self.make(request.sampling), request, self.ops)

    def _find_breakers(self, texts: tuple[str, ...]) -> SequenceBreakers:
        if texts not in self._breakers:
            tokenizer = self._tokenizer
            token_texts = [tokenizer.token_bytes(token).decode(errors="replace") for token in range(tokenizer.n_vocab)]
            self._breakers[texts] = find_breakers(texts, token_texts, tokenizer.tokenize)
        return self._breakers[texts]
