"""Shapes with symbols in them."""

from __future__ import annotations

import pytest

from minfer.graph import Symbol, TensorSpec
from minfer.quants import GGMLType

SIZES = {Symbol.N_TOKENS: 3, Symbol.N_CELLS: 128}


def test_symbols_become_sizes() -> None:
    spec = TensorSpec((Symbol.N_TOKENS, 4, 16))
    assert spec.resolve(SIZES) == (3, 4, 16)
    assert spec.n_bytes(SIZES) == 3 * 4 * 16 * 4
    assert spec.n_static_values() == 64
    assert spec.symbols() == (Symbol.N_TOKENS,)
    assert str(spec) == "f32[n_tokens, 4, 16]"


def test_a_spec_without_symbols() -> None:
    spec = TensorSpec((10, 64), GGMLType.Q8_0)
    assert spec.resolve({}) == (10, 64)
    assert spec.n_bytes({}) == 10 * 2 * 34
    assert spec.symbols() == ()
    assert str(spec) == "q8_0[10, 64]"


@pytest.mark.parametrize(
    ("ggml_type", "n_bytes"), [(GGMLType.F32, 4 * 64), (GGMLType.F16, 2 * 64), (GGMLType.Q8_0, 2 * 34)]
)
def test_bytes_of_a_kv_region(ggml_type: GGMLType, n_bytes: int) -> None:
    assert TensorSpec((Symbol.N_CELLS, 2, 64), ggml_type).n_bytes(SIZES) == 128 * 2 * n_bytes
