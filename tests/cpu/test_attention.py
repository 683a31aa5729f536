"""Attention: right against the reference on the same cache, and the same bits on every path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_runner import (
    F16,
    F32,
    Q8_0,
    SHAPE,
    Step,
    by_single_tokens,
    by_splits,
    by_tiles,
    check,
    combine_into,
    make_step,
    no_partials,
    running_on,
    seen_cells,
    split_into,
    traced,
)
from cpu_runner import INTERPRETER, TARGETS, aligned, same_bits
from minfer.backends.cpu.ops.attention import arithmetic as attention_arithmetic
from minfer.backends.cpu.ops.attention import by_heads as attention_by_heads
from minfer.backends.cpu.ops.attention import by_tokens as attention_by_tokens
from minfer.backends.cpu.ops.attention import kernels as attention
from minfer.backends.cpu.ops.attention.kernels import AttentionShape, trace_attention_tiles
from minfer.errors import UnsupportedError
from minfer.quants import GGMLType, dequantise
from minfer.simd import Kernel, Value, f32, target_named, vec

VISIBLE = [1, 2, 63, 64, 65, 100, 128, 130, 200, 448, 7, 8, 9, 16, 17, 31, 300, 301, 302]
SHAPES = {
    "group of 3": SHAPE,
    "group of 1": replace(SHAPE, n_heads=2),
    "group of 7": replace(SHAPE, n_heads=7, n_kv_heads=1),
    "group of 9": replace(SHAPE, n_heads=9, n_kv_heads=1),
    "group of 20": replace(SHAPE, n_heads=20, n_kv_heads=1),
    "wide": replace(SHAPE, head_dim=64, value_dim=128, scale=0.125),
    "odd widths": replace(SHAPE, head_dim=21, value_dim=27),
    "window": replace(SHAPE, window=70),
    "short window": replace(SHAPE, window=3),
    "softcap": replace(SHAPE, softcap=1.5, window=200),
    "f16": replace(SHAPE, k_type=F16, v_type=F16),
    "q8_0": replace(SHAPE, head_dim=32, value_dim=64, k_type=Q8_0, v_type=Q8_0),
    "mixed": replace(SHAPE, head_dim=32, k_type=Q8_0, v_type=F32, window=90),
}


@pytest.mark.parametrize("name", SHAPES)
def test_all_paths_are_right_and_give_the_same_bits(name: str) -> None:
    step = make_step(SHAPES[name], VISIBLE)
    tiles = by_tiles(step)
    check(step, tiles)
    assert same_bits(tiles, by_splits(step))
    assert same_bits(tiles, by_single_tokens(step))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gives_the_same_bits(target: str) -> None:
    """With the registers of the target, too."""
    step = make_step(SHAPE, VISIBLE[:9])
    want = by_tiles(step)
    there = replace(step, shape=replace(SHAPE, vector_bytes=target_named(target).vector_bytes))
    assert same_bits(want, by_tiles(there, running_on(target)))
    assert same_bits(want, by_splits(there, running_on(target)))


def test_the_interpreter_gives_the_same_bits_and_finds_no_access_out_of_bounds() -> None:
    # So that the tile has both a token alone and a run, with nothing behind it.
    shape = AttentionShape(2, 1, 9, 5, F16, F32, 0.25, 60, min_run=4)
    step = make_step(shape, [1, 67, 68, 69, 70], starts=[1, 0, 0, 0, 0], pages=[1, 0])
    want = by_tiles(step)
    assert same_bits(want, by_tiles(step, running_on(INTERPRETER)))
    part = step.tokens(3, 5)
    assert same_bits(want[3:], by_splits(part, running_on(INTERPRETER)))
    assert same_bits(want[3:], by_single_tokens(part, running_on(INTERPRETER)))


@pytest.mark.parametrize("n_splits", [1, 3, 50])
def test_the_number_of_splits_does_not_matter(n_splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(SHAPES["window"], [1, 64, 200, 448])
    want = by_splits(step)
    monkeypatch.setattr(attention, "N_SPLITS", n_splits)
    traced.cache_clear()
    assert same_bits(want, by_splits(step))
    traced.cache_clear()


def test_a_token_has_the_same_bits_alone_and_among_other_sequences() -> None:
    """Three sequences in one step, in runs that are done together and in shorter ones, across the border of a tile."""
    runs = [(0, 7), (3, 2), (0, 1), (5, 13), (3, 1), (5, 1), (0, 9)]
    rng = np.random.default_rng(4)
    starts = [start for start, n in runs for _ in range(n)]
    visible = [int(rng.integers(1, 129)) for _ in starts]
    step = make_step(SHAPE, visible, starts=starts)
    assert any(n >= SHAPE.min_run for _, n in runs)
    together = by_tiles(step)
    check(step, together)
    alone = by_splits(step)
    assert same_bits(together, alone)
    for token in range(len(starts)):
        assert same_bits(together[token : token + 1], by_tiles(step.tokens(token, token + 1)))


def test_where_pages_lie_does_not_matter() -> None:
    step = make_step(SHAPE, [200, 201, 202, 203, 204, 205], pages=[0, 1, 2, 3])
    cells = np.concatenate([np.arange(64) + 64 * page for page in (2, 0, 3, 1)])
    moved = replace(step, pages=np.array([1, 3, 0, 2], np.int32), k=aligned(step.k[cells]), v=aligned(step.v[cells]))
    assert same_bits(by_tiles(step), by_tiles(moved))
    assert same_bits(by_splits(step), by_splits(moved))


@pytest.mark.parametrize("name", ["group of 3", "window", "f16"])
def test_what_is_not_seen_contributes_nothing_even_as_nan(name: str) -> None:
    shape = SHAPES[name]
    step = make_step(shape, [5, 6, 40, 100, 110, 111, 140], pages=[0, 1, 2])
    want = by_tiles(step)
    for token in range(len(step.q)):
        other = poisoned(step, token)
        assert same_bits(want[token], by_tiles(other)[token])
        assert same_bits(want[token : token + 1], by_splits(other.tokens(token, token + 1)))


def poisoned(step: Step, token: int) -> Step:
    """The step with NaN wherever the token does not look."""
    unseen = np.ones(len(step.k), bool)
    unseen[seen_cells(step, token)] = False
    shape = step.shape
    regions = []
    for region, width, ggml_type in ((step.k, shape.head_dim, shape.k_type), (step.v, shape.value_dim, shape.v_type)):
        copy = region.copy()
        copy[unseen] = 0xFF
        assert np.isnan(dequantise(ggml_type, copy, width)[unseen]).all()
        regions.append(aligned(copy))
    return replace(step, k=regions[0], v=regions[1])


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("position", [3, 64])
def test_nan_that_is_seen_shows(side: str, position: int) -> None:
    """Also as the only position that is seen of a page, next to tokens that do not see it."""
    step = make_step(SHAPE, [60, 61, 62, 63, 64, 65], pages=[0, 1])
    region = getattr(step, side).copy()
    region[position] = 0xFF
    bad = replace(step, **{side: aligned(region)})
    for y in (by_tiles(bad), by_splits(bad)):
        assert np.isnan(y).any(axis=-1).all(axis=-1).tolist() == [n > position for n in step.spans[:, 1]]


def test_scores_of_minus_infinity_weigh_nothing() -> None:
    """A page of them, among others; and a token that sees nothing else has no result, as in the reference."""
    step = make_step(SHAPE, [64, 65, 66, 130, 131, 132], pages=[0, 1, 2])
    k = step.k.view(np.float32).copy()
    k[:64] = -np.inf
    q = aligned(np.abs(step.q))
    bad = replace(step, k=aligned(k.view(np.uint8)), q=q)
    tiles = by_tiles(bad)
    assert same_bits(tiles[1:], by_splits(bad)[1:])
    assert np.isnan(tiles[0]).all()
    shifted = replace(step, pages=step.pages[1:].copy(), q=q, spans=step.spans - np.array([0, 64], np.int32))
    assert same_bits(tiles[1:], by_splits(shifted.tokens(1, 6)))


def test_large_scores_do_not_overflow() -> None:
    step = make_step(replace(SHAPE, scale=1.0), [70, 71, 72, 73, 74, 75], pages=[0, 1])
    step.k.view(np.float32)[:] *= 1e15
    step.q[:] *= 1e15
    y = by_tiles(step)
    # The largest score takes all the weight.
    k, v = step.k.view(np.float32).astype(np.float64), step.v.view(np.float32)
    for token, q in enumerate(step.q.astype(np.float64)):
        scores = np.einsum("ghd,ngd->ghn", q.reshape(2, 3, 16), k[seen_cells(step, token)])
        want = [v[scores[h // 3, h % 3].argmax(), h // 3] for h in range(6)]
        assert y[token].tolist() == np.array(want).tolist()
    assert same_bits(y, by_splits(step))


def test_far_positions() -> None:
    shape = replace(SHAPE, n_heads=2)
    step = make_step(shape, [30_000], pages=np.random.default_rng(3).permutation(470).tolist())
    got = by_splits(step)
    check(step, got)
    assert same_bits(got, by_tiles(step))


def test_worked_values() -> None:
    shape = AttentionShape(1, 1, 4, 4, F32, F32, 0.5, None)
    k, v = np.zeros((64, 1, 4), np.float32), np.zeros((64, 1, 4), np.float32)
    k[:3, 0] = [(1, 0, 0, 0), (0, 1, 0, 0), (1, 1, 0, 0)]
    v[:3, 0] = [(1, 2, 0, 0), (3, 4, 0, 0), (5, 0, 0, 0)]
    regions = [aligned(each.view(np.uint8)) for each in (k, v)]
    pages = np.zeros(1, np.int32)
    for query, n, weights in (
        ((1, 1, 0, 0), 2, [0.5, 0.5]),
        ((1, 0, 0, 0), 2, [0.62246, 0.37754]),
        ((0, 1, 1, 0), 3, [0.23270, 0.38365, 0.38365]),
    ):
        q = aligned(np.array(query, np.float32).reshape(1, 1, 4))
        y = by_splits(Step(shape, q, *regions, pages, np.array([(0, n)], np.int32)))[0, 0]
        np.testing.assert_allclose(y, np.asarray(weights) @ v[:n, 0], atol=5e-5)
        if n == 2 and weights[0] == 0.5:
            assert y.tolist() == [2, 3, 0, 0]


def test_chunks_write_disjoint_parts_and_all_of_them() -> None:
    step = make_step(SHAPES["window"], [90 + i for i in range(18)])
    whole = by_tiles(step)
    for chunk in range(2 * SHAPE.n_kv_heads):
        tile, head = divmod(chunk, SHAPE.n_kv_heads)
        want = step.empty()
        mine = (slice(16 * tile, 16 * tile + 16), slice(3 * head, 3 * head + 3))
        want[mine] = whole[mine]
        assert same_bits(by_tiles(step, chunks=[chunk]), want)
    few = step.tokens(0, 3)
    partials = no_partials(few)
    split_into(few, partials)
    written = np.zeros(partials.shape, int)
    for chunk in range(3 * SHAPE.n_kv_heads * attention.N_SPLITS):
        alone = no_partials(few)
        split_into(few, alone, chunks=[chunk])
        written += ~np.isnan(alone)
        assert same_bits(alone[~np.isnan(alone)], partials[~np.isnan(alone)])
    assert written.max() == 1
    assert np.array_equal(written == 1, ~np.isnan(partials))
    for chunk in range(3 * SHAPE.n_kv_heads):
        token, head = divmod(chunk, SHAPE.n_kv_heads)
        y, want = few.empty(), few.empty()
        combine_into(few, partials, y, chunks=[chunk])
        want[token, 3 * head : 3 * head + 3] = whole[token, 3 * head : 3 * head + 3]
        assert same_bits(y, want)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("group of 3", {"scale": 0.26}),
        ("group of 3", {"window": 447}),
        ("window", {"window": 71}),
        ("window", {"window": 69}),
        ("window", {"window": None}),
    ],
)
def test_wrong_constants_are_noticed(name: str, wrong: dict[str, float | None]) -> None:
    step = make_step(SHAPES[name], VISIBLE)
    got = by_tiles(replace(step, shape=replace(step.shape, **wrong)))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="allowed difference"):
        check(step, got)


def test_a_wrong_mapping_of_heads_is_noticed() -> None:
    step = make_step(SHAPE, VISIBLE)
    # Heads 0, 2, 4 to the first KV head and 1, 3, 5 to the second.
    order = [0, 2, 4, 1, 3, 5]
    got = step.empty()
    got[:, order] = by_tiles(replace(step, q=aligned(step.q[:, order])))
    with pytest.raises(AssertionError, match="allowed difference"):
        check(step, got)


def test_a_fold_without_rescaling_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = attention_arithmetic.Factors.between

    def without_alpha(k: Kernel, before: Value, largest: Value, total: Value) -> attention_arithmetic.Factors:
        return replace(real(k, before, largest, total), alpha=k.const(vec(f32, before.lanes), 1.0))

    monkeypatch.setattr(attention_arithmetic.Factors, "between", without_alpha)
    step = make_step(SHAPE, VISIBLE)
    with pytest.raises(AssertionError, match="allowed difference"):
        check(step, by_tiles(step, kernel=trace_attention_tiles(SHAPE)))


def test_sums_that_end_up_with_another_head_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = attention_by_heads._add_lanes
    monkeypatch.setattr(attention_by_heads, "_add_lanes", lambda k, sums: real(k, [sums[i ^ 1] for i in range(8)]))
    step = make_step(SHAPE, VISIBLE[:3])
    with pytest.raises(AssertionError, match="allowed difference"):
        check(step, by_tiles(step, kernel=trace_attention_tiles(SHAPE)))


def test_parts_that_are_added_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bits, which then differ between a run and a token alone."""
    step = make_step(SHAPE, VISIBLE[3:19])
    want = by_tiles(step)
    monkeypatch.setattr(attention_by_tokens, "PART_ORDER", ((0, 1), (2, 3), (4, 5), (6, 7)))
    got = by_tiles(step, kernel=trace_attention_tiles(SHAPE))
    check(step, got)
    assert not same_bits(got, want)
    assert same_bits(want, by_splits(step))


@pytest.mark.parametrize("what", ["_mask", "_sees"])
def test_a_mask_that_is_left_out_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(SHAPE, [5, 6, 40, 100, 110, 140], pages=[0, 1, 2])
    want = by_tiles(step)
    if what == "_mask":
        monkeypatch.setattr(attention_by_tokens, "_mask", lambda *_: None)
    else:
        monkeypatch.setattr(attention_by_tokens, "_sees", lambda k, limits, j: limits[0] < limits[1])
    kernel = trace_attention_tiles(SHAPE)
    assert not same_bits(want[2], by_tiles(poisoned(step, 2), kernel=kernel)[2])


def test_other_types_of_cache_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="values in Q4_0 is not supported; supported: F32, F16, Q8_0"):
        replace(SHAPE, v_type=GGMLType.Q4_0)
