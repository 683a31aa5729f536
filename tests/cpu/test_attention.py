"""Attention: right against the reference on the same cache, and the same bits on every path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, Array, aligned, check_close, run_kernel, same_bits
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import N_STEP_WORDS, StepWord
from minfer.backends.cpu.kernels import attention, attention_page
from minfer.backends.cpu.kernels.attention import (
    MAX_SPLIT_ROWS,
    TILE_TOKENS,
    AttentionShape,
    trace_attention_combine,
    trace_attention_split,
    trace_attention_tiles,
)
from minfer.backends.reference.attention import attend
from minfer.errors import UnsupportedError
from minfer.quants import GGMLType, dequantise, quantise
from minfer.simd import Kernel, KernelIR, Value, f32, interpret, target_named, vec

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
SHAPE = AttentionShape(6, 2, 16, 16, F32, F32, 0.25, None, 8)
UNIT = 2.0**-24

Run = Callable[[KernelIR, Sequence[Array | None], Iterable[int], "Step", int], None]


@dataclass(frozen=True)
class Step:
    """Queries, a cache, and what each token sees."""

    shape: AttentionShape
    q: NDArray[np.float32]
    k: NDArray[np.uint8]
    v: NDArray[np.uint8]
    pages: NDArray[np.int32]
    spans: NDArray[np.int32]

    @property
    def inputs(self) -> dict[StepWord, Array]:
        return {StepWord.PAGES: self.pages, StepWord.SPANS: self.spans}

    def empty(self) -> NDArray[np.float32]:
        return np.full((len(self.q), self.shape.n_heads, self.shape.value_dim), 7.0, np.float32)

    def tokens(self, first: int, stop: int) -> Step:
        """The step of some of the tokens."""
        spans = np.ascontiguousarray(self.spans[first:stop])
        return replace(self, q=aligned(self.q[first:stop]), spans=spans)


def make_step(
    shape: AttentionShape,
    n_visible: Sequence[int],
    *,
    starts: Sequence[int] | None = None,
    pages: Sequence[int] | None = None,
    seed: int = 0,
) -> Step:
    rng = np.random.default_rng(seed)
    order = np.array(pages if pages is not None else rng.permutation(8), np.int32)
    n_cells = (int(order.max()) + 1) * 64

    def region(width: int, ggml_type: GGMLType) -> NDArray[np.uint8]:
        values = rng.standard_normal((n_cells, shape.n_kv_heads, width)).astype(np.float32)
        return aligned(quantise(ggml_type, values))

    spans = np.array(list(zip(starts or [0] * len(n_visible), n_visible, strict=True)), np.int32)
    q = aligned(rng.standard_normal((len(n_visible), shape.n_heads, shape.head_dim)).astype(np.float32))
    return Step(shape, q, region(shape.head_dim, shape.k_type), region(shape.value_dim, shape.v_type), order, spans)


@cache
def traced(trace: Callable[[AttentionShape], KernelIR], shape: AttentionShape) -> KernelIR:
    return trace(shape)


def compiled_for(target: str) -> Run:
    def run(
        kernel: KernelIR, arguments: Sequence[Array | None], chunks: Iterable[int], step: Step, scratch_bytes: int
    ) -> None:
        n_tokens = len(step.q)
        run_kernel(
            kernel,
            arguments,
            chunks,
            n_tokens=n_tokens,
            inputs=step.inputs,
            target=target,
            scratch_bytes=scratch_bytes,
        )

    return run


COMPILED = compiled_for(TARGETS[0])


def interpreted(
    kernel: KernelIR, arguments: Sequence[Array | None], chunks: Iterable[int], step: Step, scratch_bytes: int
) -> None:
    """Every access is checked: also that the scratch memory is large enough."""
    given = [each for each in arguments if each is not None]
    block = np.array([0 if each is None else each.ctypes.data for each in arguments], np.int64)
    words = np.zeros(N_STEP_WORDS, np.int64)
    words[StepWord.N_TOKENS] = len(step.q)
    words[StepWord.PAGES], words[StepWord.SPANS] = step.pages.ctypes.data, step.spans.ctypes.data
    scratch = aligned_zeros(scratch_bytes)
    scratch[:] = 0xFF
    for chunk in chunks:
        interpret(kernel, block, words, chunk, scratch, buffers=[*given, step.pages, step.spans])


def by_tiles(
    step: Step, run: Run = COMPILED, *, kernel: KernelIR | None = None, chunks: Iterable[int] | None = None
) -> NDArray[np.float32]:
    y, shape = step.empty(), step.shape
    every = range(-(-len(step.q) // TILE_TOKENS) * shape.n_kv_heads)
    run(
        kernel or traced(trace_attention_tiles, shape),
        [step.q, step.k, step.v, y, None],
        every if chunks is None else chunks,
        step,
        shape.tiles_scratch_bytes,
    )
    return y


def by_splits(step: Step, run: Run = COMPILED) -> NDArray[np.float32]:
    """As many tokens at a time as there is room for in the buffer of partial results."""
    results = []
    for start in range(0, len(step.q), MAX_SPLIT_ROWS):
        part = step.tokens(start, start + MAX_SPLIT_ROWS)
        y, partials = part.empty(), no_partials(part)
        split_into(part, partials, run)
        combine_into(part, partials, y, run)
        results.append(y)
    return np.concatenate(results)


def no_partials(step: Step) -> NDArray[np.float32]:
    return np.full(step.shape.partials_bytes // 4, np.nan, np.float32)


def split_into(
    step: Step, partials: NDArray[np.float32], run: Run = COMPILED, chunks: Iterable[int] | None = None
) -> None:
    n_chunks = len(step.q) * step.shape.n_kv_heads * attention.N_SPLITS
    chosen = reversed(range(n_chunks)) if chunks is None else chunks
    kernel = traced(trace_attention_split, step.shape)
    run(kernel, [step.q, step.k, step.v, None, partials], chosen, step, step.shape.split_scratch_bytes)


def combine_into(
    step: Step,
    partials: NDArray[np.float32],
    y: NDArray[np.float32],
    run: Run = COMPILED,
    chunks: Iterable[int] | None = None,
) -> None:
    chosen = range(len(step.q) * step.shape.n_kv_heads) if chunks is None else chunks
    kernel = traced(trace_attention_combine, step.shape)
    run(kernel, [None, None, None, y, partials], chosen, step, step.shape.split_scratch_bytes)


def seen_cells(step: Step, token: int) -> NDArray[np.int64]:
    start, n = step.spans[token].tolist()
    positions = np.arange(0 if step.shape.window is None else max(0, n - step.shape.window), n)
    cells: NDArray[np.int64] = step.pages[start + positions // 64].astype(np.int64) * 64 + positions % 64
    return cells


def check(step: Step, got: NDArray[np.float32]) -> None:
    """Against the reference, with u = 2**-24 for one rounding.

    Let S bound scale * sum |q[d] k[d]| over what a head sees. A score is off by (head_dim + 2) u S: the fma, the scale
    and the product. That, the rounding of s - m (2 u S) and of the maxima's differences (2 u S, they telescope), and
    exp's 2 u are a relative error of each weight. Sums over a page add 64 u, and each fold 5 u at most. All this
    happens to the numerator and to the denominator, and the division adds u. Weights sum up to 1, so that the result
    is off by the sum of these times the largest |v|.
    """
    shape = step.shape
    k = dequantise(shape.k_type, step.k, shape.head_dim).astype(np.float64)
    v = dequantise(shape.v_type, step.v, shape.value_dim).astype(np.float64)
    want, bounds = np.empty(got.shape), np.empty((*got.shape[:2], 1))
    for token, q in enumerate(step.q.astype(np.float64)):
        cells = seen_cells(step, token)
        want[token] = attend(q, k[cells], v[cells], shape.scale)
        grouped = np.abs(q).reshape(shape.n_kv_heads, shape.group, -1)
        largest = np.einsum("ghd,ngd->ghn", grouped, np.abs(k[cells])).max(axis=-1).reshape(-1)
        n_pages = len(cells) // 64 + 2
        relative = (shape.head_dim + 6) * abs(shape.scale) * largest + 2 + 64 + 5 * n_pages + 1
        bounds[token, :, 0] = 1.01 * 2 * UNIT * relative * np.abs(v[cells]).max()
    check_close(got, want, bounds)


VISIBLE = [1, 2, 63, 64, 65, 100, 128, 130, 200, 448, 7, 8, 9, 16, 17, 31, 300, 301, 302]
SHAPES = {
    "group of 3": SHAPE,
    "group of 1": replace(SHAPE, n_heads=2),
    "group of 7": replace(SHAPE, n_heads=7, n_kv_heads=1),
    "group of 20": replace(SHAPE, n_heads=20, n_kv_heads=1),
    "wide": replace(SHAPE, head_dim=64, value_dim=128, scale=0.125),
    "odd widths": replace(SHAPE, head_dim=21, value_dim=27),
    "window": replace(SHAPE, window=70),
    "short window": replace(SHAPE, window=3),
    "f16": replace(SHAPE, k_type=F16, v_type=F16),
    "q8_0": replace(SHAPE, head_dim=32, value_dim=64, k_type=Q8_0, v_type=Q8_0),
    "mixed": replace(SHAPE, head_dim=32, k_type=Q8_0, v_type=F32, window=90),
}


@pytest.mark.parametrize("name", SHAPES)
def test_both_paths_are_right_and_give_the_same_bits(name: str) -> None:
    step = make_step(SHAPES[name], VISIBLE)
    tiles = by_tiles(step)
    check(step, tiles)
    assert same_bits(tiles, by_splits(step))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gives_the_same_bits(target: str) -> None:
    """With the registers of the target, too."""
    step = make_step(SHAPE, VISIBLE[:9])
    want = by_tiles(step)
    there = replace(step, shape=replace(SHAPE, vector_bytes=target_named(target).vector_bytes))
    assert same_bits(want, by_tiles(there, compiled_for(target)))
    assert same_bits(want, by_splits(there, compiled_for(target)))


def test_the_interpreter_gives_the_same_bits_and_finds_no_access_out_of_bounds() -> None:
    shape = AttentionShape(2, 1, 9, 5, F16, F32, 0.25, 60, 2)
    step = make_step(shape, [67, 68, 69, 70, 1], starts=[0, 0, 0, 0, 1], pages=[1, 0])
    assert shape.min_run == 4  # so that the tile has both a run and a token alone
    want = by_tiles(step)
    assert same_bits(want, by_tiles(step, interpreted))
    part = step.tokens(3, 5)
    assert same_bits(want[3:], by_splits(part, interpreted))


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
    shape = replace(SHAPE, n_heads=2, max_pages=480)
    step = make_step(shape, [30_000], pages=np.random.default_rng(3).permutation(470).tolist())
    got = by_splits(step)
    check(step, got)
    assert same_bits(got, by_tiles(step))


def test_worked_values() -> None:
    shape = AttentionShape(1, 1, 4, 4, F32, F32, 0.5, None, 1)
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
    real = attention_page._Factors.between

    def without_alpha(k: Kernel, before: Value, largest: Value, total: Value) -> attention_page._Factors:
        return replace(real(k, before, largest, total), alpha=k.const(vec(f32, before.lanes), 1.0))

    monkeypatch.setattr(attention_page._Factors, "between", without_alpha)
    step = make_step(SHAPE, VISIBLE)
    with pytest.raises(AssertionError, match="allowed difference"):
        check(step, by_tiles(step, kernel=trace_attention_tiles(SHAPE)))


@pytest.mark.parametrize("what", ["_mask", "_sees"])
def test_a_mask_that_is_left_out_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(SHAPE, [5, 6, 40, 100, 110, 140], pages=[0, 1, 2])
    want = by_tiles(step)
    if what == "_mask":
        monkeypatch.setattr(attention_page, "_mask", lambda *_: None)
    else:
        monkeypatch.setattr(attention_page, "_sees", lambda k, limits, j: limits[0] < limits[1])
    kernel = trace_attention_tiles(SHAPE)
    assert not same_bits(want[2], by_tiles(poisoned(step, 2), kernel=kernel)[2])


def test_other_types_of_cache_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="values in Q4_0 is not supported; supported: F32, F16, Q8_0"):
        replace(SHAPE, v_type=GGMLType.Q4_0)
