"""Cache types: as they are written, what a position takes, and where the choice comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import minfer
from minfer.engine.cache_types import CACHE_TYPES, parse_cache_type, position_bytes
from minfer.errors import ParameterError, UnsupportedError
from minfer.models import HParams, KVTypes
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


@pytest.fixture(scope="module")
def hparams(tiny_dir: Path) -> HParams:
    with minfer.load(tiny_path(tiny_dir, "qwen2"), backend="reference") as model:
        return model.hparams


def test_bytes_of_a_position(hparams: HParams) -> None:
    """The widths of Qwen2.5-0.5B and of Qwen3-4B."""
    small = replace(hparams, n_layers=24, n_kv_heads=2, head_dim=64, value_dim=64)
    n_bytes = {name: position_bytes(small, parse_cache_type(name)) for name in CACHE_TYPES}
    assert n_bytes == {"f32": 24_576, "f16": 12_288, "q8_0": 6_528}
    assert n_bytes["f32"] >= 3.7 * n_bytes["q8_0"]
    assert position_bytes(small, parse_cache_type("k:f16,v:q8_0")) == 6_144 + 3_264
    large = replace(hparams, n_layers=36, n_kv_heads=8, head_dim=128, value_dim=128)
    assert position_bytes(large, parse_cache_type("f32")) == 294_912


def test_no_whole_number_of_blocks(hparams: HParams) -> None:
    narrow = replace(hparams, head_dim=64, value_dim=48)
    assert position_bytes(narrow, KVTypes(F32, Q8_0)) is None
    assert position_bytes(narrow, KVTypes(Q8_0, F32)) is not None


@pytest.mark.parametrize("text", ["f32", "q8_0", "k:f16,v:q8_0"])
def test_a_model_has_what_was_asked_for(text: str, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_path(tiny_dir, "qwen3")
    want = parse_cache_type(text)
    monkeypatch.setenv("MINFER_CACHE_TYPE", "f32")
    with minfer.load(path, cache_type=text, backend="reference") as model:
        assert model._runtime.store.cache_types == (want.k, want.v)
        assert model._runtime.cache_usage().position_bytes == position_bytes(model.hparams, want)
    with minfer.load(path, backend="reference") as model:
        assert model._runtime.store.cache_types == (F32, F32)
    monkeypatch.delenv("MINFER_CACHE_TYPE")
    with minfer.load(path, backend="reference") as model:
        assert model._runtime.store.cache_types == (F16, F16)


def test_a_type_of_the_environment_that_is_not_supported(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_CACHE_TYPE", "q5_1")
    with pytest.raises(UnsupportedError, match="cache type 'q5_1'"):
        minfer.load(tiny_path(tiny_dir, "qwen3"))
