"""Attention on three entries: `tiles` for prompts; `split` and `combine` for a few tokens. One arithmetic:
`attention_page.py`.

- tiles: a chunk is 16 tokens and one KV head. Lanes are tokens; the query heads of the group take turns over each
  page, so a page is read from memory once. Tokens of several sequences in a tile are done sequence by sequence.
- split: a chunk is one token, one KV head and one of `N_SPLITS` ranges of its pages, so that all threads have work
  however few the heads are. Lanes are the query heads of the group. Partial results of all pages go to a buffer.
- combine: a chunk is one token and one KV head: folds its pages' partial results in order.

Argument block: 0 q f32 [n, n_heads, head_dim], 1 K region, 2 V region, 3 y f32 [n, n_heads, value_dim], 4 partial
results. y must not overlap what is read. Numerics: sums over a page by fma, one after the other, pages folded one
after the other; the error grows with 64 + head_dim + the number of pages units roundoff. Bound by fma at prefill, by
reading K and V at decode. Source: Vaswani et al. (2017); the fold is that of online softmax (Milakov and Gimelshein,
2018); pages: Kwon et al. (2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.convention import (
    StepWord,
    argument_pointer,
    step_count,
    step_pointer,
    tape_kernel,
    thread_scratch,
)
from minfer.backends.cpu.kernels.attention_page import (
    PAGE,
    Page,
    Visible,
    attend_page,
    begin_fold,
    finish_fold,
    fold_page,
    partial_floats,
)
from minfer.backends.cpu.kernels.kv_rows import cell_bytes, load_row
from minfer.quants import GGMLType, row_bytes
from minfer.simd import Kernel, KernelIR, Value, f32, i32, i64, u8, vec

TILE_TOKENS = 16
N_SPLITS = 8
MAX_SPLIT_ROWS = 4
"""Up to so many tokens, split and combine are used."""


@dataclass(frozen=True)
class AttentionShape:
    """What a kernel is traced for. `max_pages` is the number of pages that a sequence may have."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    k_type: GGMLType
    v_type: GGMLType
    scale: float
    window: int | None
    max_pages: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def group_lanes(self) -> int:
        """Lanes that hold a group: 4, 8, 16 or a multiple of 16."""
        return next((n for n in (4, 8, 16) if n >= self.group), -(-self.group // 16) * 16)

    @property
    def page_floats(self) -> int:
        """Floats of a page of keys and values that had to be converted."""
        k = 0 if self.k_type is GGMLType.F32 else PAGE * self.head_dim
        v = 0 if self.v_type is GGMLType.F32 else PAGE * self.value_dim
        return k + v

    @property
    def partials_bytes(self) -> int:
        """Bytes of the buffer of partial results."""
        one = partial_floats(self.group_lanes, self.value_dim)
        return 4 * MAX_SPLIT_ROWS * self.n_kv_heads * self.max_pages * one

    @property
    def tiles_scratch_bytes(self) -> int:
        state = partial_floats(TILE_TOKENS, self.value_dim)
        queries = self.head_dim * TILE_TOKENS
        return 4 * (self.group * (queries + state) + state + PAGE * TILE_TOKENS + self.page_floats)

    @property
    def split_scratch_bytes(self) -> int:
        lanes = self.group_lanes
        return 4 * (self.head_dim * lanes + PAGE * lanes + self.page_floats + partial_floats(lanes, self.value_dim))


@dataclass(frozen=True)
class _Sequence:
    """Where a token's sequence stands, and what it sees: positions [low, high)."""

    page_start: Value
    high: Value


def _span(k: Kernel, step: Value, token: Value) -> _Sequence:
    spans = step_pointer(k, step, StepWord.SPANS, i32)
    return _Sequence(k.load(spans + token * 2).to(i64), k.load(spans + (token * 2 + 1)).to(i64))


def _first_visible(k: Kernel, shape: AttentionShape, high: Value) -> Value:
    return k.const(i64, 0) if shape.window is None else k.maximum(high - shape.window, 0)


def _load_page(
    k: Kernel,
    shape: AttentionShape,
    args: Value,
    step: Value,
    index: Value,
    head: Value,
    n_keys: Value,
    room: Value,
    ahead: Value | None = None,
) -> Page:
    """A page of a KV head: in place where it is f32, else converted into `room`. `ahead` indexes the next page."""
    found: list[tuple[Value, int]] = []
    for word, width, ggml_type in ((1, shape.head_dim, shape.k_type), (2, shape.value_dim, shape.v_type)):
        stride = cell_bytes(shape.n_kv_heads, width, ggml_type)
        start = _page_address(k, shape, args, step, index, head, word)
        if ggml_type is GGMLType.F32:
            found.append((start.cast(f32), stride // 4))
            continue
        with k.loop(0, n_keys) as j:
            load_row(k, start.offset_bytes(j * stride), room + j * width, width, ggml_type)
        found.append((room, width))
        room = room + PAGE * width
    (keys, key_stride), (values, value_stride) = found
    next_page: tuple[Value, Value] | None = None
    if ahead is not None and shape.page_floats == 0:
        next_keys, next_values = (_page_address(k, shape, args, step, ahead, head, word).cast(f32) for word in (1, 2))
        next_page = (next_keys, next_values)
    return Page(keys, key_stride, values, value_stride, next_page)


def _page_address(
    k: Kernel, shape: AttentionShape, args: Value, step: Value, index: Value, head: Value, word: int
) -> Value:
    """Where a page of the K region (word 1) or V region (word 2) begins for a KV head."""
    width, ggml_type = (shape.head_dim, shape.k_type) if word == 1 else (shape.value_dim, shape.v_type)
    page = k.load(step_pointer(k, step, StepWord.PAGES, i32) + index).to(i64)
    stride = cell_bytes(shape.n_kv_heads, width, ggml_type)
    return argument_pointer(k, args, word, u8).offset_bytes(page * (PAGE * stride) + head * row_bytes(ggml_type, width))


def trace_attention_split(shape: AttentionShape) -> KernelIR:
    """Partial results of some pages of one token and KV head."""
    k, args, step, chunk = tape_kernel("attention_split")
    lanes = shape.group_lanes
    n_parts = shape.n_kv_heads * N_SPLITS
    token, part = chunk // n_parts, chunk % n_parts
    head, split = part // N_SPLITS, part % N_SPLITS
    queries = thread_scratch(k).cast(f32)
    weights = queries + shape.head_dim * lanes
    room = weights + PAGE * lanes
    q = argument_pointer(k, args, 0, f32) + (token * shape.n_heads + head * shape.group) * shape.head_dim
    _transpose(k, q, shape.head_dim, k.const(i64, shape.group), queries, lanes, shape.head_dim)
    sequence = _span(k, step, token)
    low = _first_visible(k, shape, sequence.high)
    first_page, n_pages = low // PAGE, (sequence.high + (PAGE - 1)) // PAGE
    n_here = n_pages - first_page
    one = partial_floats(lanes, shape.value_dim)
    partials = argument_pointer(k, args, 4, f32) + (token * shape.n_kv_heads + head) * (shape.max_pages * one)
    with k.loop(first_page + n_here * split // N_SPLITS, first_page + n_here * (split + 1) // N_SPLITS) as p:
        n_keys = k.minimum(sequence.high - p * PAGE, PAGE)
        skipped = k.maximum(low - p * PAGE, 0)
        visible = Visible(k.splat(skipped.to(i32), lanes), k.splat(n_keys.to(i32), lanes), n_keys, skipped.eq(0))
        ahead = sequence.page_start + k.minimum(p + 1, n_pages - 1)
        page = _load_page(k, shape, args, step, sequence.page_start + p, head, n_keys, room, ahead)
        dims = (shape.head_dim, shape.value_dim)
        attend_page(k, queries, page, visible, weights, partials + p * one, lanes=lanes, dims=dims, scale=shape.scale)
    return k.finish()


def trace_attention_combine(shape: AttentionShape) -> KernelIR:
    """The fold of all pages of one token and KV head."""
    k, args, step, chunk = tape_kernel("attention_combine")
    lanes, value_dim = shape.group_lanes, shape.value_dim
    token, head = chunk // shape.n_kv_heads, chunk % shape.n_kv_heads
    state = thread_scratch(k).cast(f32)
    sequence = _span(k, step, token)
    one = partial_floats(lanes, value_dim)
    partials = argument_pointer(k, args, 4, f32) + (token * shape.n_kv_heads + head) * (shape.max_pages * one)
    begin_fold(k, state, lanes=lanes, value_dim=value_dim)
    with k.loop(_first_visible(k, shape, sequence.high) // PAGE, (sequence.high + (PAGE - 1)) // PAGE) as p:
        fold_page(k, state, partials + p * one, lanes=lanes, value_dim=value_dim)
    finish_fold(k, state, lanes=lanes, value_dim=value_dim)
    y = argument_pointer(k, args, 3, f32) + (token * shape.n_heads + head * shape.group) * value_dim
    _transpose_back(k, state + 2 * lanes, lanes, k.const(i64, shape.group), y, value_dim, value_dim)
    return k.finish()


def trace_attention_tiles(shape: AttentionShape) -> KernelIR:
    """16 tokens and one KV head."""
    k, args, step, chunk = tape_kernel("attention_tiles")
    tile, head = chunk // shape.n_kv_heads, chunk % shape.n_kv_heads
    first = tile * TILE_TOKENS
    stop = k.minimum(first + TILE_TOKENS, step_count(k, step, StepWord.N_TOKENS))
    start = k.var(first)
    with k.while_(lambda: start.get() < stop):
        begin = start.get()
        page_start = _span(k, step, begin).page_start
        end = k.var(begin + 1)
        # The tokens of the tile that follow in the same sequence.
        with k.while_(lambda: (end.get() < stop) & _same(k, step, end.get(), page_start, stop)):
            end.set(end.get() + 1)
        _attend_run(k, shape, args, step, head, begin, end.get())
        start.set(end.get())
    return k.finish()


def _same(k: Kernel, step: Value, token: Value, page_start: Value, stop: Value) -> Value:
    # The condition is evaluated whole: a token beyond the tile is not looked up.
    inside = k.minimum(token, stop - 1)
    return _span(k, step, inside).page_start.eq(page_start)


def _attend_run(
    k: Kernel, shape: AttentionShape, args: Value, step: Value, head: Value, begin: Value, end: Value
) -> None:
    lanes, value_dim, head_dim = TILE_TOKENS, shape.value_dim, shape.head_dim
    n_run = end - begin
    one, state_floats = head_dim * lanes, partial_floats(lanes, value_dim)
    queries = thread_scratch(k).cast(f32)
    states = queries + shape.group * one
    partial = states + shape.group * state_floats
    weights = partial + state_floats
    room = weights + PAGE * lanes
    q = argument_pointer(k, args, 0, f32) + (begin * shape.n_heads + head * shape.group) * head_dim
    with k.loop(0, shape.group) as g:
        _transpose(k, q + g * head_dim, shape.n_heads * head_dim, n_run, queries + g * one, lanes, head_dim)
        begin_fold(k, states + g * state_floats, lanes=lanes, value_dim=value_dim)
    spans = step_pointer(k, step, StepWord.SPANS, i32)
    last = k.splat((n_run - 1).to(i32), lanes)
    index = k.minimum(k.const(vec(i32, lanes), tuple(range(lanes))), last)
    high = k.const(vec(i32, lanes), 0)
    for lane in range(lanes):
        where = begin + k.extract(index, lane).to(i64)
        high = k.insert(high, lane, k.load(spans + (where * 2 + 1)))
    low = k.const(vec(i32, lanes), 0) if shape.window is None else k.maximum(high - shape.window, 0)
    highest = k.reduce_max(high).to(i64)
    lowest, first_start = k.reduce_min(low).to(i64), k.reduce_max(low)
    page_start = k.load(spans + begin * 2).to(i64)
    with k.loop(lowest // PAGE, (highest + (PAGE - 1)) // PAGE) as p:
        base = k.splat((p * PAGE).to(i32), lanes)
        n_keys = k.minimum(highest - p * PAGE, PAGE)
        all_high = k.reduce_min(high) - (p * PAGE).to(i32) >= n_keys.to(i32)
        all_low = first_start <= (p * PAGE).to(i32)
        visible = Visible(low - base, high - base, n_keys, all_high & all_low)
        page = _load_page(k, shape, args, step, page_start + p, head, n_keys, room)
        with k.loop(0, shape.group) as g:
            attend_page(
                k,
                queries + g * one,
                page,
                visible,
                weights,
                partial,
                lanes=lanes,
                dims=(head_dim, value_dim),
                scale=shape.scale,
            )
            fold_page(k, states + g * state_floats, partial, lanes=lanes, value_dim=value_dim)
    y = argument_pointer(k, args, 3, f32) + (begin * shape.n_heads + head * shape.group) * value_dim
    with k.loop(0, shape.group) as g:
        state = states + g * state_floats
        finish_fold(k, state, lanes=lanes, value_dim=value_dim)
        _transpose_back(k, state + 2 * lanes, lanes, n_run, y + g * value_dim, shape.n_heads * value_dim, value_dim)


def _transpose(k: Kernel, rows: Value, stride: int, n_rows: Value, to: Value, lanes: int, width: int) -> None:
    """to[d][i] = rows[i][d]; lanes without a row become 0."""
    with k.loop(0, width) as d:
        k.store(to + d * lanes, k.const(vec(f32, lanes), 0.0))
    with k.loop(0, n_rows) as i, k.loop(0, width) as d:
        k.store(to + (d * lanes + i), k.load(rows + i * stride + d))


def _transpose_back(k: Kernel, columns: Value, lanes: int, n_rows: Value, to: Value, stride: int, width: int) -> None:
    """to[i][d] = columns[d][i]"""
    with k.loop(0, n_rows) as i, k.loop(0, width) as d:
        k.store(to + i * stride + d, k.load(columns + (d * lanes + i)))
