"""Whole models against the plain forward pass, and against themselves in other chunks and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edited_gguf import edited
from minfer.engine.runtime import StepPart
from minfer.engine.session import Session
from minfer.models import KVTypes
from minfer.quants import GGMLType
from plain_forward import Array, plain_forward, rounded
from tiny_models import TINY_SPECS, RopeScaling, TinySpec, load_weights, write_tiny
from tiny_runtime import chunked_logits, same_bits, tiny_runtime, whole_logits

TinyPath = Callable[[str], Path]

TOKENS = [(7 * i + 3) % 300 for i in range(70)]
"""More than a page of the cache."""
SHORT = TOKENS[:24]

KV_TYPES = [KVTypes(GGMLType.F16, GGMLType.F16), KVTypes(GGMLType.Q8_0, GGMLType.Q8_0), KVTypes(v=GGMLType.F16)]


def tolerance(spec: TinySpec, weights: Mapping[str, Array], tokens: Sequence[int], expected: Array) -> float:
    """What rounding activations to float32 may do to the logits.

    The backend computes in float64 and rounds what each node makes to float32: a relative change of at most 2^-24 of
    every value. The same change of a row of a weight changes one value a token in just this way, by as much as a
    rounding can at most. So the oracle with such weights shows how far one rounding after every product and norm is
    carried through the layers. There are 16 nodes that round in a layer, and 9 with weights; with roundings half as
    large on average as at most, that makes about 0.7 of it, and 3 leaves room for the largest of the logits.
    """
    return 3 * float(np.abs(plain_forward(spec, rounded(weights, 0), tokens) - expected).max())


@pytest.mark.parametrize(
    ("name", "tokens"),
    [*((name, SHORT) for name in TINY_SPECS), ("llama-gqa", TOKENS), ("qwen3", TOKENS)],
    ids=lambda x: x if isinstance(x, str) else str(len(x)),
)
def test_logits_are_those_of_the_plain_forward_pass(name: str, tokens: Sequence[int], tiny_path: TinyPath) -> None:
    spec, weights = TINY_SPECS[name], load_weights(tiny_path(name))
    expected = plain_forward(spec, weights, tokens)
    allowed = tolerance(spec, weights, tokens, expected)
    assert allowed < 5e-5  # a thousandth of what float16 activations would do, at logits that spread by 2
    with tiny_runtime(tiny_path(name)) as runtime:
        logits = whole_logits(runtime, tokens)
    assert np.abs(logits - expected).max() <= allowed


@pytest.mark.parametrize("name", TINY_SPECS)
def test_the_same_bits_in_any_chunks_and_token_by_token(name: str, tiny_path: TinyPath) -> None:
    """The decode goes from one page of the cache into the next."""
    with tiny_runtime(tiny_path(name)) as runtime:
        whole = whole_logits(runtime, TOKENS)
        for chunk in (7, 64):
            assert same_bits(chunked_logits(runtime, TOKENS, chunk), whole), chunk
        with Session(runtime) as session:
            assert same_bits(session.extend_all(TOKENS[:62]), whole[:62])
            assert same_bits(session.extend_all(TOKENS[62:], chunk=1), whole[62:])


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3"])
def test_the_same_bits_token_by_token_from_the_first_one_on(name: str, tiny_path: TinyPath) -> None:
    with tiny_runtime(tiny_path(name)) as runtime:
        assert same_bits(chunked_logits(runtime, TOKENS, 1), whole_logits(runtime, TOKENS))


WRONG: list[tuple[str, dict[str, object]]] = [
    ("llama-gqa", {"architecture": "qwen2"}),  # the other way to pair dimensions
    ("qwen2", {"architecture": "llama"}),
    ("llama-gqa", {"norm_eps": 1e-6}),
    ("llama-gqa", {"freq_base": 10_100.0}),
    ("llama-linear", {"rope_scaling": RopeScaling()}),
    ("llama-yarn", {"rope_scaling": replace(TINY_SPECS["llama-yarn"].rope_scaling, factor=4.01)}),
    ("qwen2-yarn", {"rope_scaling": replace(TINY_SPECS["qwen2-yarn"].rope_scaling, beta_fast=None)}),
    ("llama-partial-rotary", {"n_rot": 16}),
    ("qwen3", {"qk_norm": False}),
]


@pytest.mark.parametrize(("name", "changes"), WRONG, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_a_model_that_is_a_little_different_is_told_apart(
    name: str, changes: dict[str, object], tiny_path: TinyPath
) -> None:
    spec, weights = TINY_SPECS[name], load_weights(tiny_path(name))
    allowed = tolerance(spec, weights, SHORT, plain_forward(spec, weights, SHORT))
    wrong = plain_forward(replace(spec, **changes), weights, SHORT)  # type: ignore[arg-type]
    with tiny_runtime(tiny_path(name)) as runtime:
        logits = whole_logits(runtime, SHORT)
    assert np.abs(logits - wrong).max() > 3 * allowed


@pytest.mark.parametrize("kv_types", KV_TYPES, ids=lambda t: f"{t.k.name}-{t.v.name}")
@pytest.mark.parametrize("name", ["llama-k-quants", "qwen3"])
def test_the_same_bits_with_a_smaller_cache(name: str, kv_types: KVTypes, tiny_path: TinyPath) -> None:
    """Close to the float32 cache, and unlike it; and as independent of chunks as that one."""
    with tiny_runtime(tiny_path(name)) as runtime:
        exact = whole_logits(runtime, TOKENS[:20])
    with tiny_runtime(tiny_path(name), kv_types=kv_types) as runtime:
        whole = whole_logits(runtime, TOKENS[:20])
        assert same_bits(chunked_logits(runtime, TOKENS[:20], 7), whole)
        assert same_bits(chunked_logits(runtime, TOKENS[:20], 1), whole)
    # A key or value is off by at most 2^-11 (f16) or 1/254 of its block's largest (q8_0).
    assert 0 < np.abs(whole - exact).max() < 0.5
    assert np.abs(whole - exact).mean() < (0.003 if GGMLType.Q8_0 not in (kv_types.k, kv_types.v) else 0.05)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-tied", "qwen3", "llama-k-quants-tied"])
def test_sequences_in_one_step_equal_each_alone(name: str, tiny_path: TinyPath) -> None:
    """Prefill, decode and a resumed sequence in one step, in any order, with the arena poisoned."""
    histories = {"new": [], "decoding": TOKENS[:66], "resumed": TOKENS[5:9]}
    news = {"new": TOKENS[10:31], "decoding": [17], "resumed": TOKENS[30:37]}
    with tiny_runtime(tiny_path(name)) as runtime:
        alone: dict[str, NDArray[np.float32]] = {}
        for who, history in histories.items():
            alone[who] = whole_logits(runtime, [*history, *news[who]])[len(history) :]
        for order in (("new", "decoding", "resumed"), ("resumed", "new", "decoding")):
            sequences = {who: runtime.sequence() for who in order}
            for who in order:
                sequences[who].reserve(len(histories[who]) + len(news[who]))
                if histories[who]:
                    runtime.step([StepPart(histories[who], 0, sequences[who].pages, [])])
            parts = [
                StepPart(news[who], len(histories[who]), sequences[who].pages, range(len(news[who]))) for who in order
            ]
            together = runtime.step(parts)
            at = 0
            for who in order:
                assert same_bits(together[at : at + len(news[who])], alone[who]), who
                at += len(news[who])
                sequences[who].free()


@pytest.mark.parametrize("n_threads", [1, 2])
def test_threads_and_poison_change_no_bits(n_threads: int, tiny_path: TinyPath) -> None:
    path = tiny_path("llama-k-quants")
    with tiny_runtime(path, poison=False) as runtime:
        logits = whole_logits(runtime, TOKENS[:30])
    with tiny_runtime(path, n_threads=n_threads, poison=True) as runtime:
        assert same_bits(whole_logits(runtime, TOKENS[:30]), logits)


def test_rows_that_are_not_asked_for_change_no_others(tiny_path: TinyPath) -> None:
    with tiny_runtime(tiny_path("qwen2")) as runtime:
        whole = whole_logits(runtime, TOKENS[:20])
        sequence = runtime.sequence()
        sequence.reserve(20)
        for rows in ([19], [3, 0, 19], [7, 7], []):
            assert same_bits(runtime.step([StepPart(TOKENS[:20], 0, sequence.pages, rows)]), whole[rows])


def test_a_later_token_changes_nothing_before_it(tiny_path: TinyPath) -> None:
    changed = [*TOKENS[:10], 290, *TOKENS[11:20]]
    with tiny_runtime(tiny_path("llama-gqa")) as runtime:
        one, other = whole_logits(runtime, TOKENS[:20]), whole_logits(runtime, changed)
    assert same_bits(one[:10], other[:10])
    assert (np.abs(one[10:] - other[10:]).max(axis=1) > 1e-2).all()


def test_pages_used_before_hold_nothing_over(tiny_path: TinyPath) -> None:
    """A new sequence in the pages of a longer one that was freed sees none of it."""
    with tiny_runtime(tiny_path("qwen3")) as runtime:
        fresh = whole_logits(runtime, TOKENS[:5])
        with Session(runtime) as longer:
            longer.extend(TOKENS)
        assert same_bits(whole_logits(runtime, TOKENS[:5]), fresh)


@pytest.mark.parametrize(("window", "n"), [(8, 40), (64, 70)])
def test_a_sliding_window(window: int, n: int, tmp_path: Path) -> None:
    """With one layer, the last logits of a long text are those of its last `window` tokens at their positions: scores
    depend on distances only, so the same tokens at the start of a text give the same, up to float32 rounding."""
    spec = replace(TINY_SPECS["llama-gqa"], n_layers=1)
    path = write_tiny(tmp_path / "plain.gguf", spec)
    windowed = edited(path, tmp_path / "windowed.gguf", {"llama.attention.sliding_window": window})
    with tiny_runtime(windowed) as runtime:
        whole = whole_logits(runtime, TOKENS[:n])
        assert same_bits(chunked_logits(runtime, TOKENS[:n], 7), whole)
        assert same_bits(chunked_logits(runtime, TOKENS[:n], 1), whole)
    with tiny_runtime(path) as runtime:
        unlimited = whole_logits(runtime, TOKENS[:n])
        assert same_bits(whole[:window], unlimited[:window])
        assert (np.abs(whole[window:] - unlimited[window:]).max(axis=1) > 1e-3).all()
        alone = whole_logits(runtime, TOKENS[n - window : n])[-1]
        np.testing.assert_allclose(whole[-1], alone, atol=1e-4)
        for wrong in (window - 1, window + 1):
            assert np.abs(whole[-1] - whole_logits(runtime, TOKENS[n - wrong : n])[-1]).max() > 1e-3
