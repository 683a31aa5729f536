"""The sampling parameters: what a user may set, each with its range and its neutral value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from minfer.errors import ParameterError

_MAX_SEED = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the logits. Nothing is clamped: a value out of its range is an error.

    Attributes:
        temperature: >= 0. Divides the logits before the draw; 0 is greedy (always the likeliest token).
        top_k: >= 0. Keeps the `top_k` likeliest tokens; 0 is off.
        top_p: in (0, 1]. Keeps the fewest likeliest tokens whose probabilities reach `top_p`; 1 is off.
        min_p: in [0, 1]. Keeps tokens at least `min_p` times as likely as the likeliest; 0 is off.
        repetition_penalty: > 0. Divides positive and multiplies negative logits of tokens seen; 1 is off.
        frequency_penalty: in [-2, 2]. Subtracted from a token's logit once for each time it was seen; 0 is off.
        presence_penalty: in [-2, 2]. Subtracted once from the logit of each token seen; 0 is off.
        penalty_window: >= -1. How many of the last tokens count as seen; -1 is all of them, 0 is off.
        logit_bias: token id -> what is added to its logit; finite, or -inf to ban the token. Copied.
        seed: in [0, 2**64). The same seed, parameters and logits give the same tokens; None takes a random one.

    Raises:
        ParameterError: naming the field, its value and its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None

    def __post_init__(self) -> None:
        # A frozen dataclass can be completed only this way. Numbers of other libraries (np.float32, np.int64) become
        # Python's, so that equal parameters compare, hash and print alike.
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        temperature = _real("temperature", self.temperature)
        _require(temperature >= 0, "temperature", temperature, "finite and >= 0 (0 is greedy)")
        put("temperature", temperature)

        top_k = _integer("top_k", self.top_k)
        _require(top_k >= 0, "top_k", top_k, ">= 0 (0 is off)")
        put("top_k", top_k)

        top_p = _real("top_p", self.top_p)
        _require(0 < top_p <= 1, "top_p", top_p, "above 0 and at most 1 (1 is off)")
        put("top_p", top_p)

        min_p = _real("min_p", self.min_p)
        _require(0 <= min_p <= 1, "min_p", min_p, "from 0 to 1 (0 is off)")
        put("min_p", min_p)

        repetition_penalty = _real("repetition_penalty", self.repetition_penalty)
        _require(repetition_penalty > 0, "repetition_penalty", repetition_penalty, "finite and above 0 (1 is off)")
        put("repetition_penalty", repetition_penalty)

        for name in ("frequency_penalty", "presence_penalty"):
            penalty = _real(name, getattr(self, name))
            _require(-2 <= penalty <= 2, name, penalty, "from -2 to 2 (0 is off)")
            put(name, penalty)

        penalty_window = _integer("penalty_window", self.penalty_window)
        _require(penalty_window >= -1, "penalty_window", penalty_window, ">= -1 (-1 is all tokens, 0 is off)")
        put("penalty_window", penalty_window)

        put("logit_bias", _logit_bias(self.logit_bias))

        if self.seed is not None:
            seed = _integer("seed", self.seed)
            _require(0 <= seed <= _MAX_SEED, "seed", seed, f"from 0 to {_MAX_SEED}, or None for a random one")
            put("seed", seed)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether tokens seen before are treated differently."""
        neutral = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) == (1.0, 0.0, 0.0)
        return self.penalty_window != 0 and not neutral


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise ParameterError(f"{name} is {value!r}; it must be {expected}")


def _real(name: str, value: object) -> float:
    """A finite number as a float."""
    number = _float(name, value)
    _require(math.isfinite(number), name, value, "finite")
    return number


def _float(name: str, value: object) -> float:
    # bool is an int in Python, but `temperature=True` is a mistake, not 1.0.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} is {value!r}; it must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError as error:
        raise ParameterError(f"{name} is an integer too large for a floating-point number") from error


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(f"{name} is {value!r}; it must be an integer, not {type(value).__name__}")
    return int(value)


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ParameterError(f"logit_bias is {value!r}; it must map token ids to numbers, not {type(value).__name__}")
    biases: dict[int, float] = {}
    for key, entry in value.items():
        token = _integer("a token id in logit_bias", key)
        _require(token >= 0, "a token id in logit_bias", token, ">= 0")
        bias = _float(f"logit_bias[{token}]", entry)
        _require(math.isfinite(bias) or bias == -math.inf, f"logit_bias[{token}]", bias, "finite, or -inf (banned)")
        biases[token] = bias
    return biases
