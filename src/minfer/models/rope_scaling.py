"""From a file's `rope.*` metadata to the frequencies of a `Rope` op: every scaling variant ends in these numbers.

Unscaled: frequencies[i] = base^(-2i / n_rot). Variants:
- linear: divided by the factor (Chen et al., "Extending Context Window via Positional Interpolation", 2023).
- llama3: long wavelengths divided by the factor, short ones kept, those between interpolated (Llama 3.1). Files
  usually carry the result as the tensor `rope_freqs.weight`, by which the frequencies are divided.
- yarn: dimensions that turn rarely are interpolated, those that turn often are kept, and the magnitude grows by
  0.1 ln(factor) + 1 (Peng et al., "YaRN", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import Metadata
from minfer.graph.ops import Rope, RopeStyle


class RopeScaling(StrEnum):
    """`rope.scaling.type`, by its name in files."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True)
class RopeParams:
    """What a file says about its rotary embedding."""

    n_rot: int
    """dimensions of a head that are rotated"""
    freq_base: float
    scaling: RopeScaling
    factor: float
    """how many times longer the context is than it was in training before the scaling"""
    n_ctx_original: int
    attn_factor: float
    beta_fast: float
    beta_slow: float
    low_freq_factor: float
    high_freq_factor: float


def read_rope_params(metadata: Metadata, architecture: str, *, head_dim: int, n_ctx_train: int) -> RopeParams:
    """Reads `ARCHITECTURE.rope.*`.

    Raises:
        UnsupportedError: a scaling type that is not known here.
        ModelError: numbers that can't be.
    """
    prefix = f"{architecture}.rope."
    n_rot = metadata.get_int(prefix + "dimension_count", head_dim)
    if n_rot % 2 or not 0 < n_rot <= head_dim:
        raise ModelError(
            f"{prefix}dimension_count is {n_rot}, and must be even and at most the head's width {head_dim}"
        )
    # Older files have `scale_linear`, and a factor without a type is that of linear scaling.
    factor = metadata.get_float(prefix + "scaling.factor", metadata.get_float(prefix + "scale_linear", 1.0))
    default = RopeScaling.NONE if factor == 1.0 else RopeScaling.LINEAR
    name = metadata.get_str(prefix + "scaling.type", default.value)
    if name not in set(RopeScaling):
        raise UnsupportedError(f"{prefix}scaling.type {name!r}", [kind.value for kind in RopeScaling])
    params = RopeParams(
        n_rot=n_rot,
        freq_base=metadata.get_float(prefix + "freq_base", 10000.0),
        scaling=RopeScaling(name),
        factor=factor,
        n_ctx_original=metadata.get_int(prefix + "scaling.original_context_length", n_ctx_train),
        attn_factor=metadata.get_float(prefix + "scaling.attn_factor", 1.0),
        beta_fast=metadata.get_float(prefix + "scaling.yarn_beta_fast", 32.0),
        beta_slow=metadata.get_float(prefix + "scaling.yarn_beta_slow", 1.0),
        low_freq_factor=metadata.get_float(prefix + "scaling.low_freq_factor", 1.0),
        high_freq_factor=metadata.get_float(prefix + "scaling.high_freq_factor", 4.0),
    )
    _check_range(prefix, params)
    return params


def _check_range(prefix: str, params: RopeParams) -> None:
    for field, value, lower in (
        ("freq_base", params.freq_base, 1.0),
        ("scaling.factor", params.factor, 0.0),
        ("scaling.original_context_length", params.n_ctx_original, 0.0),
        ("scaling.attn_factor", params.attn_factor, 0.0),
        ("scaling.yarn_beta_slow", params.beta_slow, 0.0),
        ("scaling.yarn_beta_fast", params.beta_fast, params.beta_slow),
        ("scaling.low_freq_factor", params.low_freq_factor, 0.0),
        ("scaling.high_freq_factor", params.high_freq_factor, params.low_freq_factor),
    ):
        if not lower < value < math.inf:
            raise ModelError(f"{prefix}{field} is {value}, and must be a finite number above {lower:g}")


def make_rope(params: RopeParams, style: RopeStyle, divisors: Sequence[float] | None = None) -> Rope:
    """The op for these parameters. `divisors` are the n_rot/2 values of `rope_freqs.weight`, where the file has it.

    Raises:
        ModelError: the wrong number of divisors, one that is not positive, or a scaling that they would repeat.
    """
    unscaled = [params.freq_base ** (-2 * i / params.n_rot) for i in range(params.n_rot // 2)]
    magnitude = params.attn_factor
    match params.scaling:
        case RopeScaling.NONE:
            frequencies = unscaled
        case RopeScaling.LINEAR:
            frequencies = [f / params.factor for f in unscaled]
        case RopeScaling.LLAMA3:
            frequencies = [_llama3(f, params) for f in unscaled]
        case RopeScaling.YARN:
            frequencies = _yarn(unscaled, params)
            magnitude *= 0.1 * math.log(params.factor) + 1.0 if params.factor > 1 else 1.0
    if divisors is not None:
        if params.scaling is RopeScaling.LLAMA3:
            raise ModelError("the file has rope_freqs.weight and scaling type llama3: the frequencies are scaled twice")
        if len(divisors) != len(frequencies):
            raise ModelError(f"rope_freqs.weight has {len(divisors)} values, and {len(frequencies)} pairs are rotated")
        if not all(math.isfinite(d) and d > 0 for d in divisors):
            raise ModelError("rope_freqs.weight holds a value that is not a positive number")
        frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    return Rope(style, tuple(frequencies), magnitude)


def _llama3(frequency: float, params: RopeParams) -> float:
    turns = params.n_ctx_original * frequency / (2 * math.pi)
    if turns < params.low_freq_factor:
        return frequency / params.factor
    if turns > params.high_freq_factor:
        return frequency
    smooth = (turns - params.low_freq_factor) / (params.high_freq_factor - params.low_freq_factor)
    return (1 - smooth) * frequency / params.factor + smooth * frequency


def _yarn(unscaled: Sequence[float], params: RopeParams) -> list[float]:
    def dimension_with(n_turns: float) -> float:
        """The pair that makes `n_turns` full turns over the original context."""
        ratio = params.n_ctx_original / (n_turns * 2 * math.pi)
        return params.n_rot * math.log(ratio) / (2 * math.log(params.freq_base))

    low = max(math.floor(dimension_with(params.beta_fast)), 0)
    high = min(math.ceil(dimension_with(params.beta_slow)), params.n_rot - 1)
    width = max(high - low, 0.001)
    frequencies = []
    for i, frequency in enumerate(unscaled):
        kept = 1 - min(max((i - low) / width, 0.0), 1.0)
        frequencies.append(frequency / params.factor * (1 - kept) + frequency * kept)
    return frequencies
