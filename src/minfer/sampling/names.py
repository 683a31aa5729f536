"""What options are called elsewhere: names that are taken too, and what somebody may have meant by another."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from minfer.errors import ParameterError

Value = TypeVar("Value")

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"repeat_penalty": "repetition_penalty", "repeat_last_n": "penalty_window", "typ_p": "typical_p"}
)
"""llama.cpp's names -> those of `SamplingParams`. Both are taken wherever options are."""

_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_length": "max_tokens",
        "max_new_tokens": "max_tokens",
        "max_output_tokens": "max_tokens",
        "n_predict": "max_tokens",
        "num_predict": "max_tokens",
        "num_ctx": "n_ctx",
        "stop_sequences": "stop",
        "stop_strings": "stop",
        "temp": "temperature",
        "dry_penalty_range": "dry_penalty_last_n",
        "repetition_penalty_range": "penalty_window",
        "random_seed": "seed",
        "enable_thinking": "chat_template_kwargs",
        "num_return_sequences": "n",
    }
)
"""Names that other programs have, and that no likeness leads to ours."""


def canonical(given: Mapping[str, Value]) -> dict[str, Value]:
    """Options by the names of `SamplingParams`, whichever of its names each was given by.

    Raises:
        ParameterError: an option by both of its names, with different values.
    """
    named: dict[str, Value] = {}
    for name, value in given.items():
        ours = ALIASES.get(name, name)
        if ours in named and named[ours] != value:
            alias = next(alias for alias, target in ALIASES.items() if target == ours)
            raise ParameterError(f"{ours} is {given[ours]!r}, and {alias}, another name of it, {given[alias]!r}")
        named[ours] = value
    return named


def suggestion(name: str, known: Collection[str]) -> str:
    """A question for the end of a message about a name that is not known; empty where none of those known is near."""
    elsewhere = _ELSEWHERE.get(name)
    near = [elsewhere] if elsewhere in known else difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
