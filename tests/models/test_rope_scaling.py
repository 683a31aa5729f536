"""From `rope.*` metadata to the frequencies of a Rope op, against numbers from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose

from edited_gguf import edited
from minfer.errors import ModelError
from minfer.gguf import GGUFFile, open_gguf
from minfer.graph import ops
from minfer.graph.ops import RopeStyle
from minfer.models import declare_graph, read_config
from minfer.models.config import Rope, RopeScaling, RopeScalingKind
from minfer.models.rope_scaling import make_rope
from plain_forward import rope_frequencies, rope_magnitude
from tiny_models import TINY_SPECS, load_weights

TinyPath = Callable[[str], Path]

PLAIN = Rope(RopeStyle.INTERLEAVED, n_rot=16, base=10_000.0)


def scaled(kind: RopeScalingKind, *, n_rot: int = 16, base: float = 10_000.0, **numbers: Any) -> Rope:
    return Rope(RopeStyle.INTERLEAVED, n_rot, base, RopeScaling(kind, **({"n_ctx_original": 64} | numbers)))


# Inverse frequencies from Hugging Face transformers 5.24, for the three scalings with the parameters below.
LLAMA3 = (1, 0.193922745, 0.0273441373, 9.11583e-4, 1.767767e-4, 3.428102e-5, 6.64787e-6, 1.289173e-6)
YARN = (1, 0.237170825, 0.05, 0.00790569415, 0.0025, 7.90569415e-4, 2.5e-4, 7.90569415e-5)
YARN_BETAS = (1, 0.316227766, 0.1, 0.0197642354, 0.0025, 7.90569415e-4, 2.5e-4, 7.90569415e-5)


def frequencies(rope: Rope, divisors: tuple[float, ...] | None = None) -> tuple[float, ...]:
    return make_rope(rope, divisors).frequencies


def test_worked_value() -> None:
    assert_allclose(frequencies(replace(PLAIN, n_rot=4)), [1, 0.01], rtol=1e-15)


@pytest.mark.parametrize("style", RopeStyle)
def test_unscaled(style: RopeStyle) -> None:
    rope = make_rope(replace(PLAIN, style=style))
    assert (rope.style, rope.magnitude, rope.n_rot) == (style, 1.0, 16)
    assert_allclose(rope.frequencies, [10 ** (-i / 2) for i in range(8)], rtol=1e-14)


def test_linear() -> None:
    params = scaled(RopeScalingKind.LINEAR, factor=4.0)
    assert_allclose(frequencies(params), [10 ** (-i / 2) / 4 for i in range(8)], rtol=1e-14)
    assert make_rope(params).magnitude == 1.0


def test_a_factor_without_scaling_changes_nothing() -> None:
    assert frequencies(scaled(RopeScalingKind.NONE, factor=4.0)) == frequencies(PLAIN)


def test_llama3() -> None:
    params = scaled(RopeScalingKind.LLAMA3, factor=8.0, n_ctx_original=512, base=500_000.0)
    assert_allclose(frequencies(params), LLAMA3, rtol=3e-7)
    assert make_rope(params).magnitude == 1.0


def test_llama3_as_published_for_llama_3_1() -> None:
    """Base 500,000, 64 pairs, factor 8 on 8192: wavelengths below 2048 are kept, those above 8192 are 8 times longer,
    and at 4096 the frequency is 1/3 of the way from the one to the other."""
    params = scaled(RopeScalingKind.LLAMA3, n_rot=128, base=500_000.0, factor=8.0, n_ctx_original=8192)
    plain, stretched = frequencies(replace(params, scaling=RopeScaling())), frequencies(params)
    blended = 0
    for before, after in zip(plain, stretched, strict=True):
        wavelength = 2 * math.pi / before
        if wavelength < 2048:
            assert after == before
        elif wavelength > 8192:
            assert_allclose(after, before / 8, rtol=1e-14)
        else:
            blended += 1
            kept = (8192 / wavelength - 1) / 3
            assert_allclose(after, before * (kept + (1 - kept) / 8), rtol=1e-14)
    assert blended == 6  # pairs 29 to 34


def test_yarn() -> None:
    params = scaled(RopeScalingKind.YARN, factor=4.0, n_ctx_original=64)
    rope = make_rope(params)
    assert_allclose(rope.frequencies, YARN, rtol=3e-7)
    assert_allclose(rope.magnitude, 1.1386294361, rtol=1e-10)  # 0.1 ln 4 + 1


def test_yarn_with_other_betas() -> None:
    params = scaled(RopeScalingKind.YARN, factor=4.0, n_ctx_original=256, beta_fast=4.0, beta_slow=0.5)
    assert_allclose(frequencies(params), YARN_BETAS, rtol=3e-7)


def test_a_yarn_ramp_that_ends_beyond_the_last_pair() -> None:
    """Base 100 on 4096: 32 turns at pair 5.2, one at 11.3. The ramp goes from 5 to 12, and there are 8 pairs."""
    params = scaled(RopeScalingKind.YARN, factor=4.0, n_ctx_original=4096, base=100.0)
    plain = frequencies(replace(params, scaling=RopeScaling()))
    ratios = [scaled / before for scaled, before in zip(frequencies(params), plain, strict=True)]
    assert_allclose(ratios, [1, 1, 1, 1, 1, 1, 1 - 0.75 / 7, 1 - 0.75 * 2 / 7], rtol=1e-14)


def test_a_yarn_ramp_without_width() -> None:
    """No pair makes a whole turn over 4 positions: all are stretched but the first."""
    params = scaled(RopeScalingKind.YARN, factor=4.0, n_ctx_original=4)
    assert_allclose(frequencies(params), [1, *(10 ** (-i / 2) / 4 for i in range(1, 8))], rtol=1e-14)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_yarn_that_does_not_stretch_keeps_the_magnitude(factor: float) -> None:
    rope = make_rope(scaled(RopeScalingKind.YARN, factor=factor))
    assert rope.magnitude == 1.0
    if factor == 1.0:
        assert_allclose(rope.frequencies, frequencies(PLAIN), rtol=1e-15)


@pytest.mark.parametrize("kind", RopeScalingKind)
def test_the_attention_factor_multiplies_the_magnitude(kind: RopeScalingKind) -> None:
    once = make_rope(scaled(kind, factor=4.0)).magnitude
    doubled = make_rope(scaled(kind, factor=4.0, attn_factor=2.0)).magnitude
    assert doubled == 2 * once


def test_divisors_divide() -> None:
    divisors = tuple(float(i + 1) for i in range(8))
    assert_allclose(frequencies(PLAIN, divisors), [10 ** (-i / 2) / (i + 1) for i in range(8)], rtol=1e-14)
    linear = scaled(RopeScalingKind.LINEAR, factor=2.0)
    assert_allclose(frequencies(linear, divisors), [10 ** (-i / 2) / (i + 1) / 2 for i in range(8)], rtol=1e-14)


@pytest.mark.parametrize(
    ("divisors", "message"),
    [
        ((1.0,) * 7, "rope_freqs.weight has 7 values, and 8 pairs are rotated"),
        ((1.0,) * 16, "rope_freqs.weight has 16 values, and 8 pairs are rotated"),
        ((*(1.0,) * 7, 0.0), "not a positive number"),
        ((*(1.0,) * 7, -1.0), "not a positive number"),
        ((*(1.0,) * 7, math.nan), "not a positive number"),
        ((math.inf, *(1.0,) * 7), "not a positive number"),
    ],
)
def test_divisors_that_can_not_be(divisors: tuple[float, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        frequencies(PLAIN, divisors)


def test_frequencies_are_not_scaled_twice() -> None:
    with pytest.raises(ModelError, match="scaled twice"):
        frequencies(scaled(RopeScalingKind.LLAMA3, factor=8.0), (1.0,) * 8)


# In files.


def rope_read(file: GGUFFile) -> Rope:
    """The rotation of the first layer; that of the others is the same."""
    config, _ = read_config(file)
    ropes = {layer.mixer.rope for layer in config.layers}
    (rope,) = ropes
    assert rope is not None
    return rope


def rope_of(path: Path) -> ops.Rope:
    with open_gguf(path) as file:
        _, graph = declare_graph(file)
    (rope,) = {node.op for node in graph.nodes if isinstance(node.op, ops.Rope)}
    return rope


@pytest.mark.parametrize("name", TINY_SPECS)
def test_every_tiny_model(name: str, tiny_path: TinyPath) -> None:
    spec = TINY_SPECS[name]
    rope = rope_of(tiny_path(name))
    assert_allclose(rope.frequencies, rope_frequencies(spec, load_weights(tiny_path(name))), rtol=1e-14)
    assert_allclose(rope.magnitude, rope_magnitude(spec), rtol=1e-14)
    assert rope.style is (RopeStyle.INTERLEAVED if spec.architecture == "llama" else RopeStyle.NON_INTERLEAVED)
    assert rope.n_rot == spec.n_rot


@pytest.mark.parametrize(
    ("keys", "kind", "factor"),
    [
        ({}, RopeScalingKind.NONE, 1.0),
        ({"scale_linear": 4.0}, RopeScalingKind.LINEAR, 4.0),
        ({"scaling.factor": 4.0}, RopeScalingKind.LINEAR, 4.0),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, RopeScalingKind.LINEAR, 4.0),
        ({"scaling.type": "linear", "scale_linear": 4.0}, RopeScalingKind.LINEAR, 4.0),
        ({"scaling.factor": 2.0, "scale_linear": 4.0}, RopeScalingKind.LINEAR, 2.0),
        ({"scaling.type": "none", "scaling.factor": 4.0}, RopeScalingKind.NONE, 4.0),
        ({"scaling.type": "yarn", "scaling.factor": 4.0}, RopeScalingKind.YARN, 4.0),
        ({"scaling.type": "llama3", "scaling.factor": 8.0}, RopeScalingKind.LLAMA3, 8.0),
        ({"scale_linear": 1.0}, RopeScalingKind.NONE, 1.0),
    ],
)
def test_old_and_new_keys(
    keys: dict[str, object], kind: RopeScalingKind, factor: float, tiny_path: TinyPath, tmp_path: Path
) -> None:
    metadata = {f"llama.rope.{key}": value for key, value in keys.items()}
    with open_gguf(edited(tiny_path("llama-gqa"), tmp_path / "edited.gguf", metadata)) as file:
        scaling = rope_read(file).scaling
    assert (scaling.kind, scaling.factor) == (kind, factor)
    assert scaling.n_ctx_original == 256


def test_the_numbers_of_a_scaling_come_from_the_file(tiny_path: TinyPath, tmp_path: Path) -> None:
    values = {
        "original_context_length": 128,
        "attn_factor": 0.5,
        "yarn_beta_fast": 16.0,
        "yarn_beta_slow": 2.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 3.0,
    }
    metadata = {f"llama.rope.scaling.{key}": value for key, value in values.items()}
    with open_gguf(edited(tiny_path("llama-gqa"), tmp_path / "edited.gguf", metadata)) as file:
        scaling = rope_read(file).scaling
    assert scaling == RopeScaling(RopeScalingKind.NONE, 1.0, 128, 0.5, 16.0, 2.0, 1.5, 3.0)
