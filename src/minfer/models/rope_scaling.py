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

from minfer.errors import ModelError, UnsupportedError
from minfer.graph import ops
from minfer.graph.ops import RopeStyle
from minfer.models.config import Rope, RopeScaling, RopeScalingKind
from minfer.models.keys import Keys


def read_rope(keys: Keys, style: RopeStyle, head_dim: int) -> Rope:
    """Reads `rope.*` for heads of this width.

    Raises:
        UnsupportedError: a scaling type that is not known here.
        ModelError: numbers that can't be.
    """
    n_rot = keys.integer("rope.dimension_count", head_dim, at_least=0)
    if n_rot % 2 or not 0 < n_rot <= head_dim:
        name = keys.full_name("rope.dimension_count")
        raise ModelError(f"{name} is {n_rot}, and must be even and at most the head's width {head_dim}")
    # Older files have `scale_linear`, and a factor without a type is that of linear scaling.
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    default = RopeScalingKind.NONE if factor == 1.0 else RopeScalingKind.LINEAR
    kind = keys.text("rope.scaling.type", default.value)
    if kind not in set(RopeScalingKind):
        supported = [each.value for each in RopeScalingKind]
        raise UnsupportedError(f"{keys.full_name('rope.scaling.type')} {kind!r}", supported)
    scaling = RopeScaling(
        kind=RopeScalingKind(kind),
        factor=factor,
        n_ctx_original=keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
        attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        low_freq_factor=keys.number("rope.scaling.low_freq_factor", 1.0),
        high_freq_factor=keys.number("rope.scaling.high_freq_factor", 4.0),
    )
    rope = Rope(style, n_rot, keys.number("rope.freq_base", 10000.0), scaling)
    _check_range(keys, rope)
    return rope


def _check_range(keys: Keys, rope: Rope) -> None:
    scaling = rope.scaling
    for name, value, lower in (
        ("rope.freq_base", rope.base, 1.0),
        ("rope.scaling.factor", scaling.factor, 0.0),
        ("rope.scaling.attn_factor", scaling.attn_factor, 0.0),
        ("rope.scaling.yarn_beta_slow", scaling.beta_slow, 0.0),
        ("rope.scaling.yarn_beta_fast", scaling.beta_fast, scaling.beta_slow),
        ("rope.scaling.low_freq_factor", scaling.low_freq_factor, 0.0),
        ("rope.scaling.high_freq_factor", scaling.high_freq_factor, scaling.low_freq_factor),
    ):
        if not lower < value < math.inf:
            raise ModelError(f"{keys.full_name(name)} is {value}, and must be a finite number above {lower:g}")


def make_rope(rope: Rope, divisors: Sequence[float] | None = None) -> ops.Rope:
    """The op for a layer's rotation. `divisors` are the n_rot/2 values of `rope_freqs.weight`, where the file has it.

    Raises:
        ModelError: the wrong number of divisors, one that is not positive, or a scaling that they would repeat.
    """
    scaling = rope.scaling
    unscaled = [rope.base ** (-2 * i / rope.n_rot) for i in range(rope.n_rot // 2)]
    magnitude = scaling.attn_factor
    match scaling.kind:
        case RopeScalingKind.NONE:
            frequencies = unscaled
        case RopeScalingKind.LINEAR:
            frequencies = [f / scaling.factor for f in unscaled]
        case RopeScalingKind.LLAMA3:
            frequencies = [_llama3(f, scaling) for f in unscaled]
        case RopeScalingKind.YARN:
            frequencies = _yarn(unscaled, rope)
            magnitude *= 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    if divisors is not None:
        if scaling.kind is RopeScalingKind.LLAMA3:
            raise ModelError("the file has rope_freqs.weight and scaling type llama3: the frequencies are scaled twice")
        if len(divisors) != len(frequencies):
            raise ModelError(f"rope_freqs.weight has {len(divisors)} values, and {len(frequencies)} pairs are rotated")
        if not all(math.isfinite(d) and d > 0 for d in divisors):
            raise ModelError("rope_freqs.weight holds a value that is not a positive number")
        frequencies = [f / d for f, d in zip(frequencies, divisors, strict=True)]
    return ops.Rope(rope.style, tuple(frequencies), magnitude)


def _llama3(frequency: float, scaling: RopeScaling) -> float:
    turns = scaling.n_ctx_original * frequency / (2 * math.pi)
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    if turns > scaling.high_freq_factor:
        return frequency
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _yarn(unscaled: Sequence[float], rope: Rope) -> list[float]:
    def dimension_with(n_turns: float) -> float:
        """The pair that makes `n_turns` full turns over the original context."""
        ratio = rope.scaling.n_ctx_original / (n_turns * 2 * math.pi)
        return rope.n_rot * math.log(ratio) / (2 * math.log(rope.base))

    low = max(math.floor(dimension_with(rope.scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_with(rope.scaling.beta_slow)), rope.n_rot - 1)
    width = max(high - low, 0.001)
    frequencies = []
    for i, frequency in enumerate(unscaled):
        kept = 1 - min(max((i - low) / width, 0.0), 1.0)
        frequencies.append(frequency / rope.scaling.factor * (1 - kept) + frequency * kept)
    return frequencies
