"""Attention: the window is the mask, pages are looked up, and nothing outside of a token's window counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from kernel_runner import Packed, f32, index, region, run_one, weight
from minfer.backends.reference.attention import softmax
from minfer.graph import PAGE_SIZE
from minfer.graph.ops import Attention
from minfer.quants import GGMLType, dequantise
from tiny_runtime import same_bits

NAN = float("nan")


@dataclass(frozen=True)
class CachedSequence:
    """One sequence: keys [n, n_kv_heads, head_dim] and values [n, n_kv_heads, value_dim] of all its positions, the
    pages they stand in, and the query [n_heads, head_dim] of each (position, query) that attends."""

    k: NDArray[np.float32]
    v: NDArray[np.float32]
    pages: tuple[int, ...]
    queries: Sequence[tuple[int, NDArray[np.float32]]]


def attend(
    sequences: Sequence[CachedSequence],
    *,
    scale: float,
    window: int | None = None,
    n_pages: int = 8,
    types: tuple[GGMLType, GGMLType] = (GGMLType.F32, GGMLType.F32),
    elsewhere: float = NAN,
    order: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """The op over the queries of all sequences, one after the other or in `order`. Every cell that no position stands
    in holds `elsewhere`; a position after a token's own is written, and has to be ignored."""
    k_cells = _cells([s.k for s in sequences], [s.pages for s in sequences], n_pages, types[0], elsewhere)
    v_cells = _cells([s.v for s in sequences], [s.pages for s in sequences], n_pages, types[1], elsewhere)
    rows, spans, pages = [], [], []
    for sequence in sequences:
        for position, query in sequence.queries:
            rows.append(query)
            spans.append((len(pages), position + 1))
        pages += sequence.pages
    chosen = list(range(len(rows)) if order is None else order)
    y = run_one(
        Attention(scale, window),
        f32([rows[i] for i in chosen]),
        k_cells,
        v_cells,
        index("pages", pages),
        index("spans", [spans[i] for i in chosen]),
    )
    restored = np.empty_like(y)
    restored[chosen] = y
    return restored


def _cells(
    rows: Sequence[NDArray[np.float32]],
    pages: Sequence[tuple[int, ...]],
    n_pages: int,
    ggml_type: GGMLType,
    elsewhere: float,
) -> Packed:
    n_kv_heads, width = rows[0].shape[1:]
    blank = region(np.zeros((n_pages * PAGE_SIZE, n_kv_heads, width)), ggml_type)
    filler = _filler(ggml_type, width, elsewhere)
    data = np.broadcast_to(filler, blank.data.shape).copy()
    for part, where in zip(rows, pages, strict=True):
        for position, row in enumerate(part):
            data[where[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE] = weight(row, ggml_type).data
    return replace(blank, data=data)


def _filler(ggml_type: GGMLType, width: int, value: float) -> NDArray[np.uint8]:
    """A row of one value, NaN included: in q8_0 that is a block whose scale is NaN."""
    match ggml_type:
        case GGMLType.F32:
            return np.full(width, value, np.float32).view(np.uint8)
        case GGMLType.F16:
            return np.full(width, value, np.float16).view(np.uint8)
        case _:
            block = np.concatenate([np.array([value], np.float16).view(np.uint8), np.ones(32, np.uint8)])
            return np.tile(block, width // 32)


def plain(sequence: CachedSequence, *, scale: float, window: int | None = None) -> NDArray[np.float64]:
    """The definition, one head and one position at a time."""
    return variant(sequence, scale=scale, sees=lambda p: range(0 if window is None else max(0, p + 1 - window), p + 1))


def variant(
    sequence: CachedSequence,
    *,
    scale: float,
    sees: Callable[[int], range],
    kv_head: Callable[[int, int, int], int] = lambda h, n_heads, n_kv_heads: h // (n_heads // n_kv_heads),
) -> NDArray[np.float64]:
    outputs = []
    for position, query in sequence.queries:
        heads = []
        for h in range(query.shape[0]):
            g = kv_head(h, query.shape[0], sequence.k.shape[1])
            seen = [j for j in sees(position) if 0 <= j < len(sequence.k)]
            scores = [scale * math.fsum(query[h].astype(float) * sequence.k[j, g].astype(float)) for j in seen]
            powers = [math.exp(score - max(scores)) for score in scores]
            weights = [power / math.fsum(powers) for power in powers]
            heads.append(sum(w * sequence.v[j, g].astype(float) for w, j in zip(weights, seen, strict=True)))
        outputs.append(heads)
    return np.array(outputs, np.float64)


def assert_attended(y: NDArray[np.float32], want: NDArray[np.float64], sequence: CachedSequence) -> None:
    """In float64 throughout, rounded once to float32. Where the weighted values cancel, what remains of float64's error
    counts against their size."""
    assert_allclose(y, want, rtol=2.0**-24 * 1.001, atol=1e-13 * float(np.abs(sequence.v).max()))


def random_sequence(
    seed: int,
    n: int,
    *,
    pages: tuple[int, ...] = (),
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int = 8,
    value_dim: int = 8,
    positions: Sequence[int] = (),
) -> CachedSequence:
    rng = np.random.default_rng(seed)
    return CachedSequence(
        k=f32(rng.normal(size=(n, n_kv_heads, head_dim))),
        v=f32(rng.normal(size=(n, n_kv_heads, value_dim))),
        pages=pages or tuple(range(-(-n // PAGE_SIZE))),
        queries=[(p, f32(rng.normal(0, 2, (n_heads, head_dim)))) for p in positions or (n - 1,)],
    )


def cancelling_sequence(
    seed: int, n: int, *, pages: tuple[int, ...] = (), positions: Sequence[int] = ()
) -> CachedSequence:
    """Like `random_sequence`, but of every 16 positions the last 8 have the keys of the first 8, in another order, and
    the negatives of their values: at position 15, 31, ... the sum is 0. What rounding leaves of it shows in which order
    it was added up; where nothing cancels, almost any order gives the same float32."""
    sequence = random_sequence(seed, n, pages=pages, positions=positions)
    rng = np.random.default_rng(seed)
    k, v = sequence.k.copy(), sequence.v * f32(10 ** rng.uniform(-3, 3, (n, 1, 1)))
    for start in range(0, n - 15, 16):
        order = start + rng.permutation(8)
        k[start + 8 : start + 16], v[start + 8 : start + 16] = k[order], -v[order]
    return replace(sequence, k=k, v=v)


def test_cancelling_sums_show_the_order_of_adding() -> None:
    sequence = cancelling_sequence(0, 96, positions=(95,))
    swapped = replace(sequence, k=sequence.k[::-1].copy(), v=sequence.v[::-1].copy())
    one, other = attend([sequence], scale=0.3), attend([swapped], scale=0.3)
    assert (one != other).mean() > 0.5
    assert np.abs(one).max() < 1e-10


@pytest.mark.parametrize(
    ("query", "keys", "values", "weights", "out"),
    [
        ([1, 1, 0, 0], [[1, 0, 0, 0], [0, 1, 0, 0]], [[1, 2, 0, 0], [3, 4, 0, 0]], [0.5, 0.5], [2, 3, 0, 0]),
        (
            [1, 0, 0, 0],
            [[1, 0, 0, 0], [0, 1, 0, 0]],
            [[1, 2, 0, 0], [3, 4, 0, 0]],
            [0.62246, 0.37754],
            [0.62246 + 3 * 0.37754, 2 * 0.62246 + 4 * 0.37754, 0, 0],
        ),
        (
            [0, 1, 1, 0],
            [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]],
            [[1, 2, 0, 0], [3, 4, 0, 0], [5, 0, 0, 0]],
            [0.23270, 0.38365, 0.38365],
            [0.23270 + 8 * 0.38365, 2 * 0.23270 + 4 * 0.38365, 0, 0],
        ),
    ],
)
def test_worked_values(
    query: list[float], keys: list[list[float]], values: list[list[float]], weights: list[float], out: list[float]
) -> None:
    k, n = f32(keys)[:, None], len(keys)
    queries = [(n - 1, f32([query]))]
    shown = attend([CachedSequence(k, f32(np.eye(n)[:, None]), (0,), queries)], scale=0.5)
    assert_allclose(shown[0, 0], weights, atol=5e-6)
    y = attend([CachedSequence(k, f32(values)[:, None], (0,), queries)], scale=0.5)
    assert_allclose(y[0, 0], out, atol=5e-5)
    if weights == [0.5, 0.5]:
        assert y[0, 0].tolist() == out


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(1, 150),
    st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 2), (7, 1)]),
    st.sampled_from([(8, 8), (8, 12), (16, 4), (1, 1)]),
    st.sampled_from([None, 1, 2, 63, 64, 65, 500]),
    st.integers(0, 99),
)
def test_against_the_definition(
    n: int, heads: tuple[int, int], widths: tuple[int, int], window: int | None, seed: int
) -> None:
    positions = sorted({0, n // 2, n - 1})
    sequence = random_sequence(
        seed,
        n,
        pages=(5, 0, 3)[: -(-n // PAGE_SIZE)],
        n_heads=heads[0],
        n_kv_heads=heads[1],
        head_dim=widths[0],
        value_dim=widths[1],
        positions=positions,
    )
    y = attend([sequence], scale=0.3, window=window)
    assert_attended(y, plain(sequence, scale=0.3, window=window), sequence)


def test_wrong_head_mappings_are_far_off() -> None:
    sequence = random_sequence(1, 40, n_heads=6, n_kv_heads=2, positions=(10, 39))
    y = attend([sequence], scale=0.5)
    assert_attended(y, plain(sequence, scale=0.5), sequence)
    wrong: dict[str, Callable[[int, int, int], int]] = {
        "alternating": lambda h, n_heads, n_kv_heads: h % n_kv_heads,
        "the first only": lambda h, n_heads, n_kv_heads: 0,
        "reversed": lambda h, n_heads, n_kv_heads: n_kv_heads - 1 - h // (n_heads // n_kv_heads),
        "groups of n_kv_heads": lambda h, n_heads, n_kv_heads: min(h // n_kv_heads, n_kv_heads - 1),
    }
    for name, kv_head in wrong.items():
        values = variant(sequence, scale=0.5, sees=lambda p: range(p + 1), kv_head=kv_head)
        assert np.abs(y - values).max() > 0.1, name


def test_wrong_scales_are_far_off() -> None:
    sequence = random_sequence(2, 30, head_dim=8, value_dim=12)
    scale = 1 / math.sqrt(8)
    y = attend([sequence], scale=scale)
    assert_attended(y, plain(sequence, scale=scale), sequence)
    for wrong in (1.0, 1 / 8, 1 / math.sqrt(12), 1 / math.sqrt(4 * 8), -scale):
        assert np.abs(y - plain(sequence, scale=wrong)).max() > 1e-2, wrong


@pytest.mark.parametrize("window", [1, 5, 64, 70])
def test_wrong_windows_are_far_off(window: int) -> None:
    sequence = random_sequence(3, 100, positions=(80, 90))
    y = attend([sequence], scale=0.1, window=window)
    assert_attended(y, plain(sequence, scale=0.1, window=window), sequence)
    wrong: dict[str, Callable[[int], range]] = {
        "one more": lambda p: range(p - window, p + 1),
        "one less": lambda p: range(min(p, p + 2 - window), p + 1),
        "not itself": lambda p: range(p - window, p),
        "one ahead": lambda p: range(p + 1 - window, p + 2),
        "no window": lambda p: range(p + 1),
        "everything": lambda p: range(100),
        "from the page's start": lambda p: range(p // PAGE_SIZE * PAGE_SIZE, p + 1),
    }
    for name, sees in wrong.items():
        if name == "one less" and window == 1:
            continue
        assert np.abs(y - variant(sequence, scale=0.1, sees=sees)).max() > 1e-3, name


def test_a_window_that_holds_everything_is_no_window() -> None:
    sequence = random_sequence(4, 70, positions=(0, 40, 69))
    assert same_bits(attend([sequence], scale=0.3, window=70), attend([sequence], scale=0.3))


@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0])
@pytest.mark.parametrize("window", [None, 20])
def test_cells_outside_the_window_contribute_nothing_whatever_they_hold(
    ggml_type: GGMLType, window: int | None
) -> None:
    """Cells that no one wrote, of other sequences, after the token's own position, or before its window."""
    mine = random_sequence(5, 80, pages=(6, 2), head_dim=32, value_dim=32, positions=(79, 60, 30))
    other = random_sequence(6, 64, pages=(4,), head_dim=32, value_dim=32, positions=(63,))
    types = (ggml_type, ggml_type)
    clean = attend([mine, other], scale=0.2, window=window, types=types, elsewhere=0.0)
    assert np.isfinite(clean).all()
    assert same_bits(attend([mine, other], scale=0.2, window=window, types=types, elsewhere=NAN), clean)
    assert same_bits(attend([mine, other], scale=0.2, window=window, types=types, elsewhere=math.inf), clean)
    alone = attend([mine], scale=0.2, window=window, types=types)
    assert same_bits(alone, clean[:3])


@pytest.mark.parametrize("window", [None, 32])
def test_nan_after_a_token_and_before_its_window(window: int | None) -> None:
    sequence = cancelling_sequence(7, 90, positions=(63,))
    clean = attend([sequence], scale=0.2, window=window)
    first = 0 if window is None else 64 - window
    k, v = sequence.k.copy(), sequence.v.copy()
    for array in (k, v):
        array[:first] = NAN
        array[64:] = NAN
    assert same_bits(attend([replace(sequence, k=k, v=v)], scale=0.2, window=window), clean)
    k[first] = NAN
    assert np.isnan(attend([replace(sequence, k=k, v=v)], scale=0.2, window=window)).any()


def test_where_the_pages_lie_changes_nothing() -> None:
    sequence = cancelling_sequence(8, 150, pages=(0, 1, 2), positions=(3, 64, 127, 143, 149))
    y = attend([sequence], scale=0.3)
    for pages in ((2, 1, 0), (5, 7, 0), (1, 0, 6)):
        assert same_bits(attend([replace(sequence, pages=pages)], scale=0.3), y)
    positions = [p for p, _ in sequence.queries]
    rolled = replace(sequence, k=np.roll(sequence.k, 64, axis=0), v=np.roll(sequence.v, 64, axis=0))
    assert np.abs(attend([rolled], scale=0.3)[positions.index(64)] - y[positions.index(64)]).max() > 1e-2


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 130), min_size=1, max_size=4), st.sampled_from([None, 16, 64]))
def test_sequences_in_one_step_equal_each_alone(lengths: list[int], window: int | None) -> None:
    rng = np.random.default_rng(len(lengths) + sum(lengths))
    free = rng.permutation(16).tolist()
    sequences = []
    for i, n in enumerate(lengths):
        pages = tuple(free.pop() for _ in range(-(-n // PAGE_SIZE)))
        positions = sorted({0, n // 3, n - 1, *range(15, n, 48)})
        sequences.append(cancelling_sequence(i, n, pages=pages, positions=positions))
    n_queries = [len(sequence.queries) for sequence in sequences]
    order = rng.permutation(sum(n_queries)).tolist()
    together = attend(sequences, scale=0.3, window=window, n_pages=16)
    assert same_bits(attend(sequences, scale=0.3, window=window, n_pages=16, order=order), together)
    at = 0
    for sequence, n in zip(sequences, n_queries, strict=True):
        assert same_bits(attend([sequence], scale=0.3, window=window, n_pages=16), together[at : at + n])
        for i, query in enumerate(sequence.queries):
            alone = attend([replace(sequence, queries=[query])], scale=0.3, window=window, n_pages=16)
            assert same_bits(alone[0], together[at + i])
        at += n


@pytest.mark.parametrize(
    "types", [(GGMLType.F16, GGMLType.F16), (GGMLType.Q8_0, GGMLType.Q8_0), (GGMLType.Q8_0, GGMLType.F32)]
)
def test_a_quantised_cache_is_read_as_what_it_holds(types: tuple[GGMLType, GGMLType]) -> None:
    sequence = random_sequence(9, 70, head_dim=64, value_dim=32, positions=(5, 69))
    k, v = (
        dequantise(ggml_type, weight(rows, ggml_type).data, rows.shape[-1])
        for ggml_type, rows in zip(types, (sequence.k, sequence.v), strict=True)
    )
    stored = attend([sequence], scale=0.2, types=types)
    assert same_bits(stored, attend([replace(sequence, k=k, v=v)], scale=0.2))
    assert not same_bits(stored, attend([sequence], scale=0.2))


def test_large_scores_do_not_overflow() -> None:
    k = f32([[[1e20]], [[2e20]], [[-3e20]]])
    v = f32([[[1]], [[2]], [[3]]])
    y = attend([CachedSequence(k, v, (0,), [(2, f32([[1e18]])), (2, f32([[-1e18]]))])], scale=1.0)
    assert y[:, 0, 0].tolist() == [2, 3]
    tied = attend([CachedSequence(f32([[[7e4]], [[7e4]]]), f32([[[1]], [[2]]]), (0,), [(1, f32([[50]]))])], scale=1.0)
    assert tied[0, 0, 0] == 1.5


def test_softmax() -> None:
    assert_allclose(softmax(np.array([[0.0, math.log(3)]])), [[0.25, 0.75]], rtol=1e-15)
    assert softmax(np.array([[1000.0, 1000.0], [-1000.0, -1e308]])).tolist() == [[0.5, 0.5], [1, 0]]
    x = np.random.default_rng(0).normal(0, 5, (3, 50))
    assert_allclose(softmax(x).sum(axis=-1), 1, rtol=1e-14)
    assert_allclose(softmax(x + 300), softmax(x), rtol=1e-12)
