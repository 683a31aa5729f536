"""The sampling parameters as a user writes them: names, help, and values from text. Options and `/set` share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import MappingProxyType

from minfer.errors import ParameterError
from minfer.sampling import SamplingParams


class Kind(Enum):
    """What a value is, and how it is written."""

    REAL = "number"
    INTEGER = "integer"
    TEXTS = "text"
    """several texts; an option is repeated, and `/set` takes one"""
    NAMES = "name,name,..."
    BIASES = "id=bias"


SAMPLING, REPETITION, MORE = "Sampling", "Repetition", "More sampling"


@dataclass(frozen=True)
class Parameter:
    """One field of `SamplingParams`."""

    name: str
    kind: Kind
    panel: str
    help: str
    short: str | None = None
    option: str | None = None
    """the option's name where it is not the parameter's"""
    other_name: str | None = None
    """one that other engines have for it"""

    @property
    def flag(self) -> str:
        return f"--{(self.option or self.name).replace('_', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        """All of them: the long one first."""
        other = None if self.other_name is None else f"--{self.other_name.replace('_', '-')}"
        return tuple(flag for flag in (self.flag, other, self.short) if flag is not None)


_ALL = (
    Parameter(
        "temperature",
        Kind.REAL,
        SAMPLING,
        "0 always takes the likeliest token; higher is more varied.",
        short="-t",
    ),
    Parameter("top_k", Kind.INTEGER, SAMPLING, "Choose among the k likeliest tokens; 0 and -1 are off."),
    Parameter("top_p", Kind.REAL, SAMPLING, "Choose among the likeliest tokens that together reach p; 1 is off."),
    Parameter("min_p", Kind.REAL, SAMPLING, "Leave out tokens less than p times as likely as the likeliest; 0 is off."),
    Parameter("seed", Kind.INTEGER, SAMPLING, "The same seed gives the same answer; by default a random one."),
    Parameter(
        "repetition_penalty",
        Kind.REAL,
        REPETITION,
        "Above 1 makes tokens that were there less likely; 1 is off.",
        other_name="repeat_penalty",
    ),
    Parameter(
        "frequency_penalty", Kind.REAL, REPETITION, "Makes a token less likely for each time it was there; 0 is off."
    ),
    Parameter("presence_penalty", Kind.REAL, REPETITION, "Makes tokens that were there less likely, once; 0 is off."),
    Parameter(
        "penalty_window", Kind.INTEGER, REPETITION, "How many of the last tokens the penalties look at; -1 is all."
    ),
    Parameter("dry_multiplier", Kind.REAL, REPETITION, "DRY: penalty for going on with a repeated passage; 0 is off."),
    Parameter("dry_base", Kind.REAL, REPETITION, "DRY: growth of the penalty with each repeated token."),
    Parameter("dry_allowed_length", Kind.INTEGER, REPETITION, "DRY: the shortest passage whose repetition counts."),
    Parameter(
        "dry_penalty_last_n", Kind.INTEGER, REPETITION, "DRY: how many of the last tokens it looks at; -1 is all."
    ),
    Parameter(
        "dry_sequence_breakers",
        Kind.TEXTS,
        REPETITION,
        "DRY: a text that ends a passage; may be repeated.",
        option="dry_sequence_breaker",
    ),
    Parameter("typical_p", Kind.REAL, MORE, "Choose among the most typical tokens that together reach p; 1 is off."),
    Parameter("top_n_sigma", Kind.REAL, MORE, "Keep logits within n standard deviations of the largest; -1 is off."),
    Parameter("xtc_probability", Kind.REAL, MORE, "XTC: how often the likeliest choices are left out; 0 is off."),
    Parameter("xtc_threshold", Kind.REAL, MORE, "XTC: the probability from which on a token is such a choice."),
    Parameter("min_keep", Kind.INTEGER, MORE, "How many tokens the truncations keep at least."),
    Parameter("dynatemp_range", Kind.REAL, MORE, "Let the temperature follow the entropy, by up to so much; 0 is off."),
    Parameter("dynatemp_exponent", Kind.REAL, MORE, "The power of the entropy that it follows."),
    Parameter("mirostat", Kind.INTEGER, MORE, "Hold the text's surprise near a target: 0 (off), 1 or 2."),
    Parameter("mirostat_tau", Kind.REAL, MORE, "Mirostat: the target, in bits a token."),
    Parameter("mirostat_eta", Kind.REAL, MORE, "Mirostat: how fast it adapts."),
    Parameter("logit_bias", Kind.BIASES, MORE, "Add to a token's logit, as ID=BIAS; -inf bans it; may be repeated."),
    Parameter("samplers", Kind.NAMES, MORE, "The stages in order, separated by commas; one that is not named is off."),
)

PARAMETERS: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in _ALL})
"""All of them by name, in the order of the help."""

OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {parameter.other_name: parameter.name for parameter in _ALL if parameter.other_name is not None}
)
"""From names that other engines have to those of `PARAMETERS`."""

# What other engines write for "off" and "random".
_MINUS_ONE: Mapping[str, int | None] = MappingProxyType({"top_k": 0, "seed": None})

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {f.name: getattr(SamplingParams(), f.name) for f in fields(SamplingParams)}
)


def parse_value(parameter: Parameter, texts: list[str]) -> object:
    """The value that a user wrote, once or several times; whether it is in its range is for `SamplingParams` to say.

    Raises:
        ParameterError: it can't be read as a value of its kind.
    """
    match parameter.kind:
        case Kind.REAL | Kind.INTEGER:
            return _number(parameter, texts[-1])
        case Kind.TEXTS:
            return tuple(texts)
        case Kind.NAMES:
            return tuple(name.strip().replace("-", "_") for name in texts[-1].split(",") if name.strip())
        case Kind.BIASES:
            return dict(_bias(text) for text in texts)


def token_limit(max_tokens: int, n_ctx: int) -> int:
    """The longest answer in tokens: -1 stands for what the context holds."""
    return n_ctx if max_tokens == -1 else max_tokens


def shown_value(value: object) -> str:
    """A value as `parse_value` reads it."""
    if value is None:
        return "random"
    if isinstance(value, Mapping):
        return " ".join(f"{token}={bias:g}" for token, bias in value.items()) or "none"
    if isinstance(value, tuple):
        return ",".join(repr(text)[1:-1] for text in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(parameter: Parameter, text: str) -> object:
    if parameter.name == "seed" and text == shown_value(None):
        return None
    try:
        if parameter.name in _MINUS_ONE and int(text) == -1:
            return _MINUS_ONE[parameter.name]
        return int(text) if parameter.kind is Kind.INTEGER else float(text)
    except ValueError:
        kind = "an integer" if parameter.kind is Kind.INTEGER else "a number"
        raise ParameterError(f"{parameter.name} is {text!r}; it must be {kind}") from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        expected = "a token id and a number, as in 42=-5 or 42=-inf"
        raise ParameterError(f"logit_bias is {text!r}; it must be {expected}") from None
