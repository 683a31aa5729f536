"""How tokens are chosen: names and meanings of llama.cpp's server, and OpenAI's where both have one.

A field that is not declared is refused by name, and so is a value of another type than declared: nothing that a client
asks for is left out in silence.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from minfer.engine import DefaultSampling
from minfer.errors import ParameterError
from minfer.sampling import SamplingParams
from minfer.sampling.names import ALIASES, canonical
from minfer.serve.errors import invalid

MAX_BIASES: Final = 1024
_MAX_INTEGER: Final = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=_MAX_INTEGER)]


def _require_false(value: bool) -> bool:
    if value:
        raise ValueError("must be false")
    return value


OnlyFalse = Annotated[bool, AfterValidator(_require_false), WithJsonSchema({"type": "boolean", "const": False})]
"""`Literal[False]` would take 0 too."""
Bias = Annotated[float, Field(ge=-1000, le=1000)] | OnlyFalse
BiasPair = Annotated[tuple[TokenId, Bias], Field(strict=False)]  # JSON has no tuples
Word = Annotated[str, Field(min_length=1, max_length=256)]


class StrictModel(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SamplingFields(StrictModel):
    """How tokens are chosen."""

    temperature: float | None = Field(None, ge=0, le=100, description="0 always takes the likeliest token.")
    dynatemp_range: float | None = Field(None, ge=0, le=100, description="How far entropy moves the temperature.")
    dynatemp_exponent: float | None = Field(None, gt=0, le=100)
    top_k: int | None = Field(
        None, ge=-1, le=_MAX_INTEGER, description="Keep the k likeliest tokens; 0 and -1 are off."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="Keep the likeliest that together reach p; 1 is off.")
    min_p: float | None = Field(None, ge=0, le=1, description="Keep tokens p times as likely as the likeliest.")
    typical_p: float | None = Field(None, gt=0, le=1, description="Keep those of the most typical surprise; 1 is off.")
    typ_p: float | None = Field(None, gt=0, le=1, description="Another name of typical_p.")
    top_n_sigma: float | None = Field(None, ge=-1, le=100, description="Keep logits so near to the largest; -1 is off.")
    xtc_probability: float | None = Field(None, ge=0, le=1, description="How often the likeliest are dropped.")
    xtc_threshold: float | None = Field(None, gt=0, le=1)
    min_keep: int | None = Field(None, ge=0, le=_MAX_INTEGER, description="Truncations leave so many tokens.")
    repeat_penalty: float | None = Field(None, gt=0, le=100, description="Of tokens seen; 1 is off.")
    repetition_penalty: float | None = Field(None, gt=0, le=100, description="Another name of repeat_penalty.")
    repeat_last_n: int | None = Field(None, ge=-1, le=_MAX_INTEGER, description="Tokens that count as seen; -1 is all.")
    penalty_window: int | None = Field(None, ge=-1, le=_MAX_INTEGER, description="Another name of repeat_last_n.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    dry_multiplier: float | None = Field(None, ge=0, le=100, description="Of repeated sequences; 0 is off.")
    dry_base: float | None = Field(None, ge=1, le=100)
    dry_allowed_length: int | None = Field(None, ge=1, le=_MAX_INTEGER)
    dry_penalty_last_n: int | None = Field(None, ge=-1, le=_MAX_INTEGER)
    dry_sequence_breakers: list[Word] | None = Field(None, max_length=64)
    mirostat: int | None = Field(None, ge=0, le=2, description="Hold the surprise near mirostat_tau; 0 is off.")
    mirostat_tau: float | None = Field(None, ge=0, le=100)
    mirostat_eta: float | None = Field(None, ge=0, le=1)
    samplers: list[Word] | None = Field(None, max_length=32, description="The stages, in their order.")
    logit_bias: (
        Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)]
        | Annotated[list[BiasPair], Field(max_length=MAX_BIASES)]
        | None
    ) = Field(None, description="Token id -> what is added to its logit; false bans the token.")
    seed: int | None = Field(None, ge=-1, lt=2**63, description="The same seed gives the same answer; -1 is random.")

    def sampling_params(self, defaults: DefaultSampling) -> SamplingParams:
        """The parameters as the sampler takes them; what is not given is the model's own, or has its default.

        Raises:
            ApiError: a token in `logit_bias` that is no id, or fields that exclude each other.
        """
        given: dict[str, Any] = {
            name: value for name in SamplingFields.model_fields if (value := getattr(self, name)) is not None
        }
        given["logit_bias"] = self.biases()
        given["seed"] = None if self.seed == -1 else self.seed
        if self.samplers is not None:
            given["samplers"] = [ALIASES.get(name, name) for name in self.samplers]
        try:
            return defaults.resolve(canonical(given))
        except ParameterError as error:
            as_given = {ALIASES.get(name, name): name for name in given} | {name: name for name in given}
            words = [word for word in re.findall(r"\w+", str(error)) if word in as_given]
            raise invalid(str(error), as_given[words[0]] if words else None, "invalid_value") from None

    def biases(self) -> dict[int, float]:
        """`logit_bias` by token id.

        Raises:
            ApiError: a key that is no id.
        """
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias or ()
        biases = {}
        for key, bias in pairs:
            token = str(key)
            if not (token.isascii() and token.isdecimal() and len(token) < 10):
                raise invalid(f"logit_bias: {token[:32]!r} is no token id", "logit_bias", "invalid_value")
            biases[int(token)] = -math.inf if bias is False else float(bias)
        return biases
