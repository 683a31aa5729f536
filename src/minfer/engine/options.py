"""The options of a generation: keyword arguments in, a checked request out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar, cast

from minfer.engine.answer import GenerationRequest
from minfer.engine.default_sampling import DefaultSampling
from minfer.engine.session import ProgressCallback
from minfer.errors import ParameterError
from minfer.sampling import SamplingParams
from minfer.sampling.names import ALIASES, canonical, suggestion

Options = TypeVar("Options", bound=Mapping[str, Any])
DEFAULT_MAX_TOKENS: Final = 512
_TAKEN: Final = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "trust_model"})


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams`, which explains them, and other names of theirs."""

    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    typical_p: float
    typ_p: float
    top_p: float
    min_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    repetition_penalty: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_window: int
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: Mapping[int, float]
    samplers: Sequence[str]
    seed: int | None


class ChatOptions(SamplingOptions, total=False):
    """The keyword arguments of `Model.conversation` and of a conversation's turns; `Model.generate` explains them."""

    max_tokens: int
    stop: str | Sequence[str]
    ignore_eos: bool
    logprobs: int | None
    template_variables: Mapping[str, Any]
    prefill: str
    progress: ProgressCallback | None


class GenerateOptions(ChatOptions, total=False):
    """The keyword arguments of `Model.generate` and `Model.stream`; their meaning and ranges: `generate`."""

    special: bool
    context_shift: bool
    continue_final_message: bool


def check_options(options: Options, kind: type[Options]) -> Options:
    """The options, each by the name that `SamplingParams` has for it.

    Raises:
        ParameterError: options that the kind does not have, with those that there are; template variables that are
            none; or an option by two names.
    """
    known = kind.__annotations__
    unknown = sorted(set(options) - set(known))
    if unknown:
        names = [name for name in known if name not in ALIASES]
        message = f"unknown option {', '.join(unknown)}{suggestion(unknown[0], known)}"
        raise ParameterError(f"{message}; known: {', '.join(names)}")
    prefill = options.get("prefill", "")
    if not isinstance(prefill, str):
        raise ParameterError(f"prefill must be the text that the answer begins with, not {prefill!r}")
    if prefill and options.get("continue_final_message", False):
        raise ParameterError("prefill begins an answer, and continue_final_message goes on with one: use one of them")
    variables = options.get("template_variables", {})
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise ParameterError(f"template_variables must map names to values, not {variables!r}")
    taken = sorted(_TAKEN.intersection(variables))
    if taken:
        raise ParameterError(f"template_variables has {', '.join(taken)}, which every chat template gets already")
    return cast(Options, canonical(options))


def sampling_params(options: Mapping[str, Any], defaults: DefaultSampling) -> SamplingParams:
    """How tokens are chosen with these options, and the model's own values where they say nothing.

    Raises:
        ParameterError: a value out of its range.
    """
    return defaults.resolve({name: options[name] for name in SamplingOptions.__annotations__ if name in options})


def make_request(
    options: Mapping[str, Any], defaults: DefaultSampling, prompt_tokens: Sequence[int], *, continues_text: bool
) -> GenerationRequest:
    """The request that options (which `check_options` has seen) ask for.

    Raises:
        ParameterError: a value out of its range.
    """
    return GenerationRequest(
        prompt_tokens=tuple(prompt_tokens),
        sampling=sampling_params(options, defaults),
        max_tokens=options.get("max_tokens", DEFAULT_MAX_TOKENS),
        stop=_stops(options.get("stop", ())),
        ignore_eos=options.get("ignore_eos", False),
        logprobs=options.get("logprobs"),
        continues_text=continues_text,
    )


def _stops(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, Sequence):
        return tuple(stop)
    raise ParameterError(f"stop must be a string or a list of strings, not {stop!r}")
