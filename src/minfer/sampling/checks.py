"""Checks of single parameters. Each gives the value as Python's own type, or says which parameter is wrong and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from minfer.errors import ParameterError


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raises ParameterError unless the condition holds."""
    if not condition:
        raise ParameterError(f"{name} is {value!r}; it must be {expected}")


def finite_real(name: str, value: object) -> float:
    """A finite number as a float."""
    number = real(name, value)
    require(math.isfinite(number), name, value, "finite")
    return number


def real(name: str, value: object) -> float:
    """Any number, infinities included, as a float."""
    # bool is an int in Python, but `temperature=True` is a mistake, not 1.0.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} is {value!r}; it must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError as error:
        raise ParameterError(f"{name} is an integer too large for a floating-point number") from error


def integer(name: str, value: object) -> int:
    """A whole number as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(f"{name} is {value!r}; it must be an integer, not {type(value).__name__}")
    return int(value)


def strings(name: str, value: object) -> tuple[str, ...]:
    """A sequence of strings that are not empty."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ParameterError(f"{name} is {value!r}; it must be a sequence of strings, not {type(value).__name__}")
    for entry in value:
        if not isinstance(entry, str) or not entry:
            raise ParameterError(f"{name} holds {entry!r}; its entries must be strings that are not empty")
    return tuple(value)


def logit_biases(value: object) -> dict[int, float]:
    """A mapping from token ids to numbers that are finite, or -inf."""
    if not isinstance(value, Mapping):
        raise ParameterError(f"logit_bias is {value!r}; it must map token ids to numbers, not {type(value).__name__}")
    biases: dict[int, float] = {}
    for key, entry in value.items():
        token = integer("a token id in logit_bias", key)
        require(token >= 0, "a token id in logit_bias", token, ">= 0")
        bias = real(f"logit_bias[{token}]", entry)
        require(math.isfinite(bias) or bias == -math.inf, f"logit_bias[{token}]", bias, "finite, or -inf (banned)")
        biases[token] = bias
    return biases
