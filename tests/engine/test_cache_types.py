"""Cache types: as they are written, what a position takes, and where the choice comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import minfer
from minfer.engine.cache_types import CACHE_TYPES, parse_cache_type, position_bytes
from minfer.errors import ParameterError, UnsupportedError
from minfer.models import KVTypes, ModelConfig
from minfer.models.config import Attention, Dense, LayerConfig, Norm
from minfer.quants import GGMLType
from tiny_load import tiny_path

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0


@pytest.mark.parametrize(
    ("text", "k", "v"),
    [
        ("f32", F32, F32),
        ("f16", F16, F16),
        ("q8_0", Q8_0, Q8_0),
        ("k:f16,v:q8_0", F16, Q8_0),
        ("v:f16, k:q8_0", Q8_0, F16),
        ("v:q8_0", F16, Q8_0),
        ("k:f32", F32, F16),
    ],
)
def test_as_they_are_written(text: str, k: GGMLType, v: GGMLType) -> None:
    assert parse_cache_type(text) == KVTypes(k, v)


@pytest.mark.parametrize("text", ["q4_0", "F16", "", "k:q4_0", "k:f16,v:bf16", "k:"])
def test_types_that_are_not_supported(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"cache type '\w*' is not supported; supported: f32, f16, q8_0"):
        parse_cache_type(text)


@pytest.mark.parametrize("text", ["f16,q8_0:", "k:f16,k:f16", "x:f16", "k:f16,", "k:f16:v", ":"])
def test_other_ways_to_write_them(text: str) -> None:
    with pytest.raises(ParameterError, match="k:f16,v:q8_0"):
        parse_cache_type(text)


def widths(n_layers: int, n_kv_heads: int, head_dim: int, value_dim: int) -> ModelConfig:
    attention = Attention(n_kv_heads, n_kv_heads, head_dim, value_dim, scale=1.0, rope=None)
    layer = LayerConfig(attention, Dense(1), Norm(0.0))
    return ModelConfig("any", 1, 1, 1, (layer,) * n_layers, Norm(0.0))


def test_bytes_of_a_position() -> None:
    """The widths of Qwen2.5-0.5B and of Qwen3-4B."""
    small = widths(24, 2, 64, 64)
    n_bytes = {name: position_bytes(small, parse_cache_type(name)) for name in CACHE_TYPES}
    assert n_bytes == {"f32": 24_576, "f16": 12_288, "q8_0": 6_528}
    assert n_bytes["f32"] >= 3.7 * n_bytes["q8_0"]
    assert position_bytes(small, parse_cache_type("k:f16,v:q8_0")) == 6_144 + 3_264
    large = widths(36, 8, 128, 128)
    assert position_bytes(large, parse_cache_type("f32")) == 294_912


def test_layers_that_are_not_alike() -> None:
    narrow, wide = widths(2, 1, 32, 32), widths(1, 4, 64, 48)
    mixed = replace(narrow, layers=(*narrow.layers, *wide.layers))
    assert position_bytes(mixed, KVTypes(F32, F32)) == 2 * 64 * 4 + 4 * 112 * 4
    assert position_bytes(mixed, KVTypes(F32, Q8_0)) is None


def test_no_whole_number_of_blocks() -> None:
    narrow = widths(1, 1, 64, 48)
    assert position_bytes(narrow, KVTypes(F32, Q8_0)) is None
    assert position_bytes(narrow, KVTypes(Q8_0, F32)) is not None


@pytest.mark.parametrize("text", ["f32", "q8_0", "k:f16,v:q8_0"])
def test_a_model_has_what_was_asked_for(text: str, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_path(tiny_dir, "qwen3")
    want = parse_cache_type(text)
    monkeypatch.setenv("MINFER_CACHE_TYPE", "f32")
    with minfer.load(path, cache_type=text, backend="reference") as model:
        assert model._runtime.store.cache_types == (want.k, want.v)
        assert model._runtime.cache_usage().position_bytes == position_bytes(model.config, want)
    with minfer.load(path, backend="reference") as model:
        assert model._runtime.store.cache_types == (F32, F32)
    monkeypatch.delenv("MINFER_CACHE_TYPE")
    with minfer.load(path, backend="reference") as model:
        assert model._runtime.store.cache_types == (F16, F16)


def test_a_type_of_the_environment_that_is_not_supported(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_CACHE_TYPE", "q5_1")
    with pytest.raises(UnsupportedError, match="cache type 'q5_1'"):
        minfer.load(tiny_path(tiny_dir, "qwen3"))
