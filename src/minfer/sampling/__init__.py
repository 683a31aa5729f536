"""From logits to a token: validated parameters, and one ordered pipeline of pure stages."""

from __future__ import annotations

from minfer.sampling.candidates import Candidates, Tokens
from minfer.sampling.combinations import SAMPLERS, TRUNCATIONS
from minfer.sampling.dry import SequenceBreakers, find_breakers
from minfer.sampling.grammar import Grammar
from minfer.sampling.logprobs import TokenLogprobs, token_logprobs
from minfer.sampling.params import SamplingParams
from minfer.sampling.sampler import Sampler, SamplerState
from minfer.sampling.vocabulary import NumpyVocabularyOps, VocabularyOps

__all__ = [
    "SAMPLERS",
    "TRUNCATIONS",
    "Candidates",
    "Grammar",
    "NumpyVocabularyOps",
    "Sampler",
    "SamplerState",
    "SamplingParams",
    "SequenceBreakers",
    "TokenLogprobs",
    "Tokens",
    "VocabularyOps",
    "find_breakers",
    "token_logprobs",
]
