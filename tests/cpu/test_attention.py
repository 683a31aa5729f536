"""Attention: right against the reference on the same cache, and the same bits on every path."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, aligned, check_close, run_kernel, same_bits
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.kernels.attention import (
    N_SPLITS,
    TILE_TOKENS,
    AttentionShape,
    trace_attention_combine,
    trace_attention_split,
    trace_attention_tiles,
)
from minfer.backends.reference.attention import attend
from minfer.quants import GGMLType, dequantise, quantise, row_bytes

F32 = GGMLType.F32
SHAPE = AttentionShape(6, 2, 16, 16, F32, F32, 0.25, None, 8)
UNIT = 2.0**-24


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
    def inputs(self) -> dict[StepWord, NDArray[np.int32]]:
        return {StepWord.PAGES: self.pages, StepWord.SPANS: self.spans}

    def empty(self) -> NDArray[np.float32]:
        return np.full((len(self.q), self.shape.n_heads, self.shape.value_dim), 7.0, np.float32)


def make_step(
    shape: AttentionShape,
    n_visible: list[int],
    *,
    starts: list[int] | None = None,
    pages: list[int] | None = None,
    seed: int = 0,
) -> Step:
    rng = np.random.default_rng(seed)
    order = np.array(pages if pages is not None else rng.permutation(8), np.int32)
    n_cells = (int(order.max()) + 1) * 64

    def region(width: int, ggml_type: GGMLType) -> NDArray[np.uint8]:
        values = rng.standard_normal((n_cells, shape.n_kv_heads, width)).astype(np.float32)
        return aligned(quantise(ggml_type, values))

    spans = np.array([(start, n) for start, n in zip(starts or [0] * len(n_visible), n_visible, strict=True)], np.int32)
    q = aligned(rng.standard_normal((len(n_visible), shape.n_heads, shape.head_dim)).astype(np.float32))
    return Step(shape, q, region(shape.head_dim, shape.k_type), region(shape.value_dim, shape.v_type), order, spans)


def by_tiles(step: Step, target: str = TARGETS[0]) -> NDArray[np.float32]:
    y, n = step.empty(), len(step.q)
    chunks = range(-(-n // TILE_TOKENS) * step.shape.n_kv_heads)
    arguments = [step.q, step.k, step.v, y, None]
    run_kernel(trace_attention_tiles(step.shape), arguments, chunks, n_tokens=n, inputs=step.inputs, target=target)
    return y


def by_splits(step: Step, target: str = TARGETS[0]) -> NDArray[np.float32]:
    """Four tokens at a time, as there is room for in the buffer of partial results."""
    results = []
    for start in range(0, len(step.q), 4):
        spans = np.ascontiguousarray(step.spans[start : start + 4])
        part = replace(step, q=aligned(step.q[start : start + 4]), spans=spans)
        y, n = part.empty(), len(part.q)
        partials = np.full(step.shape.partials_bytes // 4, np.nan, np.float32)
        arguments = [part.q, part.k, part.v, y, partials]
        for kernel, n_parts in (
            (trace_attention_split(step.shape), step.shape.n_kv_heads * N_SPLITS),
            (trace_attention_combine(step.shape), step.shape.n_kv_heads),
        ):
            chunks = reversed(range(n * n_parts))
            run_kernel(kernel, arguments, chunks, n_tokens=n, inputs=part.inputs, target=target)
        results.append(y)
    return np.concatenate(results)


def wanted(step: Step) -> NDArray[np.float64]:
    shape = step.shape
    k = dequantise(shape.k_type, step.k, shape.head_dim).astype(np.float64)
    v = dequantise(shape.v_type, step.v, shape.value_dim).astype(np.float64)
    rows = []
    for q, (start, n) in zip(step.q, step.spans.tolist(), strict=True):
        positions = np.arange(0 if shape.window is None else max(0, n - shape.window), n)
        cells = step.pages[start + positions // 64].astype(np.int64) * 64 + positions % 64
        rows.append(attend(q.astype(np.float64), k[cells], v[cells], shape.scale))
    return np.stack(rows)


def check(step: Step, got: NDArray[np.float32]) -> None:
    """The score's error (head_dim + 2 roundings of a sum of magnitudes) goes through exp into every weight,
    relatively; sums over a page and the folds add 64 + 8 + 4 roundings of the largest value."""
    shape = step.shape
    k = np.abs(dequantise(shape.k_type, step.k, shape.head_dim)).max()
    v = np.abs(dequantise(shape.v_type, step.v, shape.value_dim)).max()
    score = shape.scale * np.abs(step.q).sum(axis=-1).max() * k
    check_close(got, wanted(step), UNIT * float(v) * (2 * (shape.head_dim + 2) * score + 64 + 8 + 4 + 8))


VISIBLE = [1, 2, 63, 64, 65, 100, 128, 130, 200, 448, 7, 8, 9, 16, 17, 31, 300, 301, 302]
SHAPES = {
    "group of 3": SHAPE,
    "group of 1": replace(SHAPE, n_heads=2),
    "group of 7": replace(SHAPE, n_heads=7, n_kv_heads=1),
    "group of 20": replace(SHAPE, n_heads=20, n_kv_heads=1),
    "wide": replace(SHAPE, head_dim=64, value_dim=64, scale=0.125),
    "value_dim": replace(SHAPE, value_dim=24),
    "window": replace(SHAPE, window=70),
    "short window": replace(SHAPE, window=3),
    "f16": replace(SHAPE, k_type=GGMLType.F16, v_type=GGMLType.F16),
    "q8_0": replace(SHAPE, head_dim=32, value_dim=64, k_type=GGMLType.Q8_0, v_type=GGMLType.Q8_0),
    "mixed": replace(SHAPE, head_dim=32, k_type=GGMLType.Q8_0, v_type=GGMLType.F32),
}


@pytest.mark.parametrize("name", SHAPES)
def test_both_paths_are_right_and_give_the_same_bits(name: str) -> None:
    step = make_step(SHAPES[name], VISIBLE)
    tiles = by_tiles(step)
    check(step, tiles)
    assert same_bits(tiles, by_splits(step))


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gives_the_same_bits(target: str) -> None:
    step = make_step(SHAPE, VISIBLE[:9])
    assert same_bits(by_tiles(step), by_tiles(step, target))
    assert same_bits(by_tiles(step), by_splits(step, target))


def test_a_token_has_the_same_bits_alone_and_among_other_sequences() -> None:
    # Two sequences in one step, whose tokens alternate and share tiles.
    step = make_step(SHAPE, [10, 70, 11, 71, 12, 72, 130], starts=[0, 4, 0, 4, 0, 4, 4])
    together = by_tiles(step)
    check(step, together)
    for token in range(7):
        alone = replace(step, q=aligned(step.q[token : token + 1]), spans=step.spans[token : token + 1])
        assert same_bits(together[token : token + 1], by_tiles(alone))


def test_where_pages_lie_does_not_matter() -> None:
    step = make_step(SHAPE, [200, 201, 202], pages=[0, 1, 2, 3])
    cells = np.concatenate([np.arange(64) + 64 * page for page in (2, 0, 3, 1)])
    moved = replace(step, pages=np.array([1, 3, 0, 2], np.int32), k=aligned(step.k[cells]), v=aligned(step.v[cells]))
    assert same_bits(by_tiles(step), by_tiles(moved))


@pytest.mark.parametrize("shape", [SHAPE, SHAPES["window"], SHAPES["f16"]], ids=["all", "window", "f16"])
def test_what_is_not_seen_contributes_nothing_even_as_nan(shape: AttentionShape) -> None:
    step = make_step(shape, [5, 40, 100, 110], pages=[0, 1, 2])
    want = by_tiles(step)
    for index in range(4):
        n = int(step.spans[index, 1])
        low = 0 if shape.window is None else max(0, n - shape.window)
        seen = np.zeros(len(step.k), bool)
        seen[low:n] = True
        poisoned = []
        regions = ((step.k, shape.head_dim, shape.k_type), (step.v, shape.value_dim, shape.v_type))
        for region, width, ggml_type in regions:
            copy = region.copy()
            copy[~seen] = 0xFF
            assert np.isnan(dequantise(ggml_type, copy, width)[~seen]).all()
            poisoned.append(aligned(copy))
        other = replace(step, k=poisoned[0], v=poisoned[1])
        assert same_bits(want[index], by_tiles(other)[index])
        assert same_bits(want[index], by_splits(other)[index])


def test_far_positions() -> None:
    shape = replace(SHAPE, n_heads=2, max_pages=480)
    step = make_step(shape, [30_000], pages=list(np.random.default_rng(3).permutation(470)))
    got = by_splits(step)
    check_close(got, wanted(step), 1e-5)
    assert same_bits(got, by_tiles(step))


def test_worked_values() -> None:
    shape = AttentionShape(1, 1, 8, 8, F32, F32, 0.5, None, 1)

    def row(*numbers: float) -> NDArray[np.float32]:
        return np.array([*numbers, 0, 0, 0, 0], np.float32)

    k, v = np.zeros((64, 1, 8), np.float32), np.zeros((64, 1, 8), np.float32)
    k[0, 0], k[1, 0], k[2, 0] = row(1, 0, 0, 0), row(0, 1, 0, 0), row(1, 1, 0, 0)
    v[0, 0], v[1, 0], v[2, 0] = row(1, 2, 0, 0), row(3, 4, 0, 0), row(5, 0, 0, 0)
    regions = [aligned(each.view(np.uint8)) for each in (k, v)]
    pages = np.zeros(1, np.int32)
    for q, n, weights in (
        (row(1, 1, 0, 0), 2, [0.5, 0.5]),
        (row(1, 0, 0, 0), 2, [0.62246, 0.37754]),
        (row(0, 1, 1, 0), 3, [0.23270, 0.38365, 0.38365]),
    ):
        step = Step(shape, aligned(q.reshape(1, 1, 8)), *regions, pages, np.array([(0, n)], np.int32))
        want = np.asarray(weights) @ v[:n, 0]
        np.testing.assert_allclose(by_splits(step)[0, 0], want, atol=2e-5)


@pytest.mark.parametrize(
    "wrong",
    [replace(SHAPE, scale=0.26), replace(SHAPE, window=447), replace(SHAPE, n_heads=6, n_kv_heads=2, window=99)],
    ids=["scale", "window", "short window"],
)
def test_wrong_variants_are_noticed(wrong: AttentionShape) -> None:
    step = make_step(SHAPE, VISIBLE)
    got = by_tiles(replace(step, shape=wrong))
    with pytest.raises(AssertionError):
        check(step, got)


def test_scratch_is_as_large_as_it_says() -> None:
    assert SHAPE.partials_bytes % 4 == 0
    assert row_bytes(F32, 16) == 64
    for shape in SHAPES.values():
        assert shape.tiles_scratch_bytes < 1 << 20
