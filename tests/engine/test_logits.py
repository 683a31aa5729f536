"""Logits: for the last token or for all, the same bits however the prompt is cut up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minfer
from minfer.errors import ParameterError
from plain_forward import plain_forward
from tiny_load import tiny_path
from tiny_models import TINY_SPECS, load_weights

TOKENS = np.random.default_rng(7).integers(0, 300, 150).tolist()


def test_all_rows_are_those_of_the_plain_forward_pass(tiny_dir: Path) -> None:
    path = tiny_path(tiny_dir)
    want = plain_forward(TINY_SPECS["llama-gqa"], load_weights(path), TOKENS)
    with minfer.load(path, cache_type="f32") as exact:
        got = exact.logits(TOKENS, all=True)
    assert (got.shape, got.dtype) == (want.shape, np.float32)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_last_row_alone_is_the_same_bits(model: minfer.Model) -> None:
    np.testing.assert_array_equal(model.logits(TOKENS), model.logits(TOKENS, all=True)[-1])


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunks_are_the_same_bits(model: minfer.Model, chunk: int) -> None:
    with model.session() as session:
        got = session.extend_all(TOKENS, chunk=chunk)
    np.testing.assert_array_equal(got, model.logits(TOKENS, all=True))


def test_a_session_goes_on_where_it_was(model: minfer.Model) -> None:
    with model.session() as session:
        session.extend(TOKENS[:70])
        got = session.extend(TOKENS[70:])
        assert session.tokens == tuple(TOKENS)
    np.testing.assert_array_equal(got, model.logits(TOKENS))


def test_numpy_ids_are_taken(model: minfer.Model) -> None:
    np.testing.assert_array_equal(model.logits(np.array(TOKENS)), model.logits(TOKENS))


@pytest.mark.parametrize("tokens", [[], [300], [-1]])
def test_bad_tokens(model: minfer.Model, tokens: list[int]) -> None:
    with pytest.raises(ParameterError):
        model.logits(tokens)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_smaller_cache_types_stay_near(tiny_dir: Path, cache_type: str) -> None:
    # A head of 64 values, a whole number of q8_0 blocks.
    path = tiny_path(tiny_dir, "llama-k-quants")
    with minfer.load(path, cache_type="f32") as exact, minfer.load(path, cache_type=cache_type) as rounded:
        a, b = exact.logits(TOKENS), rounded.logits(TOKENS)
    assert not np.array_equal(a, b)
    assert np.corrcoef(a, b)[0, 1] > 0.999
