"""How a model is sampled where nobody says otherwise: as its file recommends, or the catalogue, or as minfer does.

Files recommend by the keys `general.sampling.*`, which llama.cpp introduced (ggml-org/llama.cpp pull request 17120) and
the `gguf` package names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from minfer.errors import GGUFError, MinferWarning, ModelError, ParameterError
from minfer.gguf import GGUFFile, GGUFValueType, Metadata
from minfer.hub import recommended_sampling
from minfer.sampling import SAMPLERS, TRUNCATIONS, SamplingParams

KEY_PREFIX: Final = "general.sampling."


class SamplingSource(Enum):
    """Who recommends."""

    FILE = "file"
    """the model's file"""
    CATALOGUE = "catalogue"
    """minfer's list of known models"""
    MINFER = "minfer"
    """nobody: the defaults of `SamplingParams`"""


@dataclass(frozen=True)
class DefaultSampling:
    """What applies to a model where nobody says otherwise.

    Attributes:
        recommended: fields of `SamplingParams` with their values; for the others, its defaults hold.
        source: who says so.
    """

    recommended: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    source: SamplingSource = SamplingSource.MINFER

    @property
    def params(self) -> SamplingParams:
        """The parameters where nothing is given."""
        return self.resolve({})

    def resolve(self, given: Mapping[str, Any]) -> SamplingParams:
        """The parameters for what a user gives; the model's, or the default, in place of what is not given.

        What is recommended gives way where it contradicts what is given. Temperature 0 takes nothing of it: the
        likeliest token stays the likeliest.

        Raises:
            ParameterError: a value out of its range, or values given that contradict each other.
        """
        if given.get("temperature") == 0:
            return SamplingParams(**given)
        merged = {**self.recommended, **given}
        try:
            return SamplingParams(**merged)
        except ParameterError:
            SamplingParams(**given)  # the error is the user's where there is one
            return SamplingParams(**without_contradictions(self.recommended, given)[0])

    def used(self, params: SamplingParams) -> Mapping[str, Any]:
        """Those of the recommended values that parameters have."""
        if params.is_greedy:
            return {}
        return {name: value for name, value in self.recommended.items() if getattr(params, name) == value}


def default_sampling(file: GGUFFile) -> DefaultSampling:
    """What is recommended for a file: by itself, or where it says nothing, by the catalogue.

    A value that the file has, and that can't be used, is left out with a `MinferWarning` that names its key.
    """
    if any(key.startswith(KEY_PREFIX) for key in file.metadata):
        return DefaultSampling(MappingProxyType(_of_file(file.metadata, file.path)), SamplingSource.FILE)
    known = recommended_sampling(file.path)
    return DefaultSampling(known, SamplingSource.CATALOGUE) if known else DefaultSampling()


def without_contradictions(
    recommended: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, ParameterError]]:
    """What is given, with as much of what is recommended as goes with it; and why the rest does not.

    Raises:
        ParameterError: what is given contradicts itself.
    """
    SamplingParams(**given)
    merged, refused = dict(given), {}
    for name, value in recommended.items():
        if name in given:
            continue
        try:
            SamplingParams(**merged, **{name: value})
        except ParameterError as error:
            refused[name] = error
        else:
            merged[name] = value
    return merged, refused


def _real(metadata: Metadata, key: str) -> float:
    value = metadata.get_float(key)
    # 0.95 is written as the nearest float32, which as a double is 0.949999988: the shortest decimal is meant.
    return float(str(np.float32(value))) if metadata.value_type(key) is GGUFValueType.FLOAT32 else value


def _integer(metadata: Metadata, key: str) -> int:
    return metadata.get_int(key)


def _sequence(metadata: Metadata, key: str) -> tuple[str, ...]:
    """A list of llama.cpp's names, joined by semicolons. It has no names for biases and grammars, which are always on:
    a bias before all, and a grammar before anything drops tokens."""
    stages = ["logit_bias"]
    for name in metadata.get_str(key).split(";"):
        stage = _STAGES.get(name.strip().lower())
        if stage is None:
            raise ParameterError(f"{name.strip()!r} is no stage; those that can be named are {', '.join(_STAGES)}")
        stages.append(stage)
    first = next((i for i, stage in enumerate(stages) if stage in TRUNCATIONS), len(stages))
    stages.insert(first, "grammar")
    return tuple(stages)


_STAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{name: name for name in SAMPLERS if name not in ("logit_bias", "grammar")},
        "typ_p": "typical_p",
        "typical": "typical_p",
        "temp": "temperature",
        "nucleus": "top_p",
        **{name.replace("_", "-"): name for name in SAMPLERS if "_" in name and name != "logit_bias"},
    }
)
"""The names of stages that llama.cpp takes."""

_KEYS: Final[Mapping[str, tuple[str, Callable[[Metadata, str], Any]]]] = MappingProxyType(
    {
        # The first two come first, so that what they exclude gives way to them, as llama.cpp has it.
        "sequence": ("samplers", _sequence),
        "mirostat": ("mirostat", _integer),
        "mirostat_tau": ("mirostat_tau", _real),
        "mirostat_eta": ("mirostat_eta", _real),
        "temp": ("temperature", _real),
        "top_k": ("top_k", _integer),
        "top_p": ("top_p", _real),
        "min_p": ("min_p", _real),
        "xtc_probability": ("xtc_probability", _real),
        "xtc_threshold": ("xtc_threshold", _real),
        "penalty_last_n": ("penalty_window", _integer),
        "penalty_repeat": ("repetition_penalty", _real),
    }
)
"""What stands after `KEY_PREFIX`, with the field of `SamplingParams` and how it is read."""

RECOMMENDABLE: Final = frozenset(name for name, _ in _KEYS.values())
"""The fields of `SamplingParams` that a file can recommend."""


def _of_file(metadata: Metadata, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for suffix, (name, read) in _KEYS.items():
        key = KEY_PREFIX + suffix
        if key not in metadata:
            continue
        try:
            value = read(metadata, key)
            SamplingParams(**{name: value})
        except (ModelError, GGUFError) as error:
            _warn(path, str(error))
        except ParameterError as error:
            _warn(path, f"metadata key {key}: {error}")
        else:
            found[name] = value
    for key in metadata:
        if key.startswith(KEY_PREFIX) and key.removeprefix(KEY_PREFIX) not in _KEYS:
            _warn(path, f"metadata key {key} is not known")
    merged, refused = without_contradictions(found, {})
    keys = {name: KEY_PREFIX + suffix for suffix, (name, _) in _KEYS.items()}
    for name, refusal in refused.items():
        _warn(path, f"metadata key {keys[name]}: {refusal}")
    return merged


def _warn(path: Path, reason: str) -> None:
    warnings.warn(
        f"{path.name} recommends a sampling that can't be used, and is left out: {reason}", MinferWarning, stacklevel=4
    )
