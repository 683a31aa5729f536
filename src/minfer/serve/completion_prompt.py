"""From the prompts of a completions request to tokens, and to the text that `echo` gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minfer.serve.errors import invalid
from minfer.serve.schema_completions import CompletionRequest
from minfer.text import Tokenizer


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt as the model reads it."""

    tokens: tuple[int, ...]
    has_own_bos: bool
    """whether the first token is a BOS that the prompt's text does not show"""
    text: str


def completion_prompts(tokenizer: Tokenizer, body: CompletionRequest) -> list[CompletionPrompt]:
    """The prompts in their order. Token ids are taken as they are; text gets a BOS where the model wants one.

    Raises:
        ApiError: an empty prompt, or an id that is not in the vocabulary.
    """
    given = body.prompt
    if isinstance(given, str) or isinstance(given[0], int):
        return [_prompt(tokenizer, given, "prompt")]
    return [_prompt(tokenizer, item, f"prompt.{index}") for index, item in enumerate(given)]


def _prompt(tokenizer: Tokenizer, given: Any, param: str) -> CompletionPrompt:
    if isinstance(given, str):  # else a list of ids
        plain = tokenizer.tokenize(given, special=True)
        tokens = tokenizer.with_bos(plain)
        if not tokens:
            raise invalid(f"{param}: is empty", param, "invalid_value")
        return CompletionPrompt(tuple(tokens), len(tokens) > len(plain), given)
    for token in given:
        if token >= tokenizer.n_vocab:
            message = f"{param}: token {token} is not in the vocabulary of {tokenizer.n_vocab}"
            raise invalid(message, param, "invalid_value")
    return CompletionPrompt(tuple(given), False, tokenizer.detokenize(given))
