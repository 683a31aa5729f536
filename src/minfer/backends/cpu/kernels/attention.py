"""Attention on three entries: `tiles` for prompts; `split` and `combine` for a few tokens. One arithmetic:
`attention_page.py`.

- tiles: a chunk is 16 tokens and one KV head. Tokens of one sequence are done together: lanes are tokens, and the query
  heads of the group take turns over each page, so that a page is read from memory once. Where a tile has but few
  tokens of a sequence, lanes are the query heads of the group, one token after the other.
- split: a chunk is one token, one of `N_SPLITS` ranges of its pages and one KV head, so that all threads have work
  however few the heads are. Lanes are the query heads of the group. Partial results of all pages go to a buffer.
- combine: a chunk is one token and one KV head: folds its pages' partial results in order.

Argument block: 0 q f32 [n, n_heads, head_dim], 1 K region, 2 V region, 3 y f32 [n, n_heads, value_dim], 4 partial
results, 5 for how many pages of a sequence they have room. y must not overlap what is read. Numerics: sums over a
page by fma, one after the other, pages folded one after the other; the error grows with 64 + head_dim + the number of
pages units roundoff. Bound by fma at prefill; at decode by reading K and V from memory, and by broadcasts where they
are in the cache. Source: Vaswani et al. (2017); the fold is that of online softmax (Milakov and Gimelshein, 2018);
pages: Kwon et al. (2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from minfer.backends.cpu.convention import (
    StepWord,
    argument,
    argument_pointer,
    step_count,
    step_pointer,
    tape_kernel,
    thread_scratch,
)
from minfer.backends.cpu.kernels.attention_page import (
    PackedRows,
    Page,
    PageShape,
    Visible,
    attend_page,
    begin_fold,
    finish_fold,
    fold_page,
)
from minfer.backends.cpu.kernels.kv_rows import cell_bytes, load_row
from minfer.backends.cpu.kernels.transpose import load_columns, store_rows
from minfer.errors import UnsupportedError
from minfer.graph import PAGE_SIZE
from minfer.quants import GGMLType, row_bytes
from minfer.simd import KernelIR, Value, f32, i32, i64, u8, vec

TILE_TOKENS = 16
N_SPLITS = 8
MAX_SPLIT_ROWS = 4
"""Up to so many tokens, split and combine are used."""
CACHE_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)
_DIMS_A_LINE = 16


@dataclass(frozen=True)
class AttentionShape:
    """What a kernel is traced for.

    `vector_bytes` is the target's: it decides how many sums are kept in registers, and no bit of a result.

    Raises:
        UnsupportedError: a cache of another type than `CACHE_TYPES`.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    k_type: GGMLType
    v_type: GGMLType
    scale: float
    window: int | None
    vector_bytes: int = 64

    def __post_init__(self) -> None:
        for name, ggml_type in (("keys", self.k_type), ("values", self.v_type)):
            if ggml_type not in CACHE_TYPES:
                raise UnsupportedError(f"a cache of {name} in {ggml_type.name}", [each.name for each in CACHE_TYPES])

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def by_heads(self) -> PageShape:
        """Lanes are the heads of a group: 4, 8, 16 or a multiple of 16."""
        lanes = next((n for n in (4, 8, 16) if n >= self.group), -(-self.group // 16) * 16)
        return PageShape(lanes, self.head_dim, self.value_dim, self.scale, self.vector_bytes)

    @property
    def by_tokens(self) -> PageShape:
        """Lanes are the tokens of a tile."""
        return PageShape(TILE_TOKENS, self.head_dim, self.value_dim, self.scale, self.vector_bytes)

    @property
    def min_run(self) -> int:
        """Tokens of one sequence in a tile from which on they are done together.

        That is a pass over a page for each head, with vectors of 64 bytes; tokens alone are a pass for each token, in
        half the time where vectors of 32 bytes hold a group. Measured: 6 tokens for a group of 3, 12 for one of 7.
        """
        return max(2, self.group * 2 if self.by_heads.lanes < TILE_TOKENS else self.group)

    @property
    def page_floats(self) -> int:
        """Floats of a page of keys and values that had to be converted."""
        k = 0 if self.k_type is GGMLType.F32 else PAGE_SIZE * self.head_dim
        v = 0 if self.v_type is GGMLType.F32 else PAGE_SIZE * self.value_dim
        return k + v

    def partials_bytes(self, max_pages: int) -> int:
        """Bytes of the buffer of partial results, for sequences of up to so many pages."""
        return 4 * MAX_SPLIT_ROWS * self.n_kv_heads * max_pages * self.by_heads.partial_floats

    @property
    def tiles_scratch_bytes(self) -> int:
        """Bytes that `tiles` needs: room for converted pages, and the queries and states of a run or of a token."""
        tiles, heads = self.by_tokens, self.by_heads
        a_run = self.group * (self.head_dim * tiles.lanes + tiles.partial_floats) + PAGE_SIZE * tiles.lanes
        a_token = self.head_dim * heads.lanes + heads.partial_floats + PAGE_SIZE * heads.lanes
        return 4 * (self.page_floats + max(a_run, a_token))

    @property
    def split_scratch_bytes(self) -> int:
        """Bytes that `split` and `combine` need."""
        heads = self.by_heads
        return 4 * (self.page_floats + max((self.head_dim + PAGE_SIZE) * heads.lanes, heads.partial_floats))


@dataclass(frozen=True)
class _Side:
    """The keys or the values of a layer: the word of the argument block, and what a row is."""

    word: int
    width: int
    ggml_type: GGMLType
    n_kv_heads: int

    @property
    def stride_bytes(self) -> int:
        return cell_bytes(self.n_kv_heads, self.width, self.ggml_type)

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.ggml_type, self.width)


class _Tracing:
    """One kernel while it is traced for a KV head: where its operands are."""

    def __init__(self, shape: AttentionShape, name: str) -> None:
        self.shape = shape
        self.k, self.args, self.step, self.chunk = tape_kernel(name)
        self.keys = _Side(1, shape.head_dim, shape.k_type, shape.n_kv_heads)
        self.values = _Side(2, shape.value_dim, shape.v_type, shape.n_kv_heads)
        # Converted pages come first in the scratch memory.
        self.scratch = thread_scratch(self.k).cast(f32) + shape.page_floats

    def queries(self, token: Value, head: Value) -> Value:
        """Where a token's queries of a KV head's group begin."""
        shape = self.shape
        first = token * shape.n_heads + head * shape.group
        return argument_pointer(self.k, self.args, 0, f32) + first * shape.head_dim

    def results(self, token: Value, head: Value) -> Value:
        shape = self.shape
        first = token * shape.n_heads + head * shape.group
        return argument_pointer(self.k, self.args, 3, f32) + first * shape.value_dim

    def partials(self, token: Value, head: Value) -> Value:
        """Where the partial results of a token and KV head begin, page by page."""
        shape = self.shape
        which = token * shape.n_kv_heads + head
        one = shape.by_heads.partial_floats
        return argument_pointer(self.k, self.args, 4, f32) + which * (argument(self.k, self.args, 5) * one)

    def page_start(self, token: Value) -> Value:
        return self.k.load(step_pointer(self.k, self.step, StepWord.SPANS, i32) + token * 2).to(i64)

    def stop(self, token: Value) -> Value:
        """The first position that a token does not see any more (i32)."""
        return self.k.load(step_pointer(self.k, self.step, StepWord.SPANS, i32) + (token * 2 + 1))

    def first(self, stop: Value) -> Value:
        """The first position that is seen (of the type of `stop`, one or several)."""
        window = self.shape.window
        return stop - stop if window is None else self.k.maximum(stop - window, 0)

    def pages(self, token: Value) -> tuple[Value, Value]:
        """The first page of which the token sees something, and the one after the last."""
        stop = self.stop(token).to(i64)
        return self.first(stop) // PAGE_SIZE, (stop + (PAGE_SIZE - 1)) // PAGE_SIZE

    def rows(self, side: _Side, index: Value, head: Value) -> PackedRows:
        """A page of a KV head: the page at `index` of the step's list."""
        page = self.k.load(step_pointer(self.k, self.step, StepWord.PAGES, i32) + index).to(i64)
        start = page * (PAGE_SIZE * side.stride_bytes) + head * side.row_bytes
        region = argument_pointer(self.k, self.args, side.word, u8)
        return PackedRows(region.offset_bytes(start), side.stride_bytes, side.row_bytes)

    def load_page(self, index: Value, head: Value, visible: Visible) -> Page:
        """A page as f32: in place, or converted."""
        room = thread_scratch(self.k).cast(f32)
        keys = self._as_f32(self.keys, index, head, visible, room)
        if self.shape.k_type is not GGMLType.F32:
            room = room + PAGE_SIZE * self.shape.head_dim
        return Page(*keys, *self._as_f32(self.values, index, head, visible, room))

    def _as_f32(self, side: _Side, index: Value, head: Value, visible: Visible, room: Value) -> tuple[Value, int]:
        k, rows = self.k, self.rows(side, index, head)
        if side.ggml_type is GGMLType.F32:
            return rows.start.cast(f32), side.stride_bytes // 4
        with k.loop(visible.first, visible.stop) as j:
            row = rows.start.offset_bytes(j * side.stride_bytes)
            load_row(k, row, room + j * side.width, side.width, side.ggml_type)
        return room, side.width


def trace_attention_split(shape: AttentionShape) -> KernelIR:
    """Partial results of some pages of one token and KV head."""
    t = _Tracing(shape, "attention_split")
    k = t.k
    n_parts = shape.n_kv_heads * N_SPLITS
    token, part = t.chunk // n_parts, t.chunk % n_parts
    split, head = part // shape.n_kv_heads, part % shape.n_kv_heads
    first_page, after_pages = t.pages(token)
    n_pages = after_pages - first_page
    begin, end = (first_page + n_pages * (split + i) // N_SPLITS for i in range(2))
    with k.if_(begin < end):
        partials = t.partials(token, head)
        one = shape.by_heads.partial_floats
        _attend_token(t, token, head, (begin, end), t.scratch, lambda p: partials + p * one, fold=False)
    return k.finish()


def trace_attention_combine(shape: AttentionShape) -> KernelIR:
    """The fold of all pages of one token and KV head."""
    t = _Tracing(shape, "attention_combine")
    k, heads, state = t.k, shape.by_heads, t.scratch
    token, head = t.chunk // shape.n_kv_heads, t.chunk % shape.n_kv_heads
    partials = t.partials(token, head)
    begin_fold(k, heads, state)
    with k.loop(*t.pages(token)) as p:
        fold_page(k, heads, state, partials + p * heads.partial_floats)
    _store_token(t, state, token, head)
    return k.finish()


def trace_attention_tiles(shape: AttentionShape) -> KernelIR:
    """16 tokens and one KV head."""
    t = _Tracing(shape, "attention_tiles")
    k = t.k
    tile, head = t.chunk // shape.n_kv_heads, t.chunk % shape.n_kv_heads
    begin = tile * TILE_TOKENS
    end = k.minimum(begin + TILE_TOKENS, step_count(k, t.step, StepWord.N_TOKENS))
    at = k.var(begin)
    with k.while_(lambda: at.get() < end):
        first = at.get()
        page_start = t.page_start(first)
        after = k.var(first + 1)
        # The condition is evaluated whole: a token beyond the tile is not looked up.
        with k.while_(lambda: (after.get() < end) & t.page_start(k.minimum(after.get(), end - 1)).eq(page_start)):
            after.set(after.get() + 1)
        n_run = after.get() - first
        with k.if_(n_run >= shape.min_run):
            _attend_run(t, first, n_run, head)
        with k.else_(), k.loop(first, after.get()) as token:
            state = t.scratch + (shape.head_dim + PAGE_SIZE) * shape.by_heads.lanes
            begin_fold(k, shape.by_heads, state)
            _attend_token(t, token, head, t.pages(token), t.scratch, lambda _: state, fold=True)
            _store_token(t, state, token, head)
        at.set(after.get())
    return k.finish()


def _attend_token(
    t: _Tracing,
    token: Value,
    head: Value,
    pages: tuple[Value, Value],
    scratch: Value,
    out: Callable[[Value], Value],
    *,
    fold: bool,
) -> None:
    """A token attends to pages, from the first to before the last, at least one. `out` tells where the result of a page
    goes. `scratch` holds the queries and weights, (head_dim + 64) times the lanes."""
    k, shape, heads = t.k, t.shape, t.shape.by_heads
    begin, end = pages
    page_start = t.page_start(token)
    stop = t.stop(token).to(i64)
    first = t.first(stop)
    in_place = shape.page_floats == 0
    sides = (t.keys,) if in_place else (t.keys, t.values)
    for side in sides:
        rows = t.rows(side, page_start + begin, head)
        with k.loop(0, PAGE_SIZE) as j:
            for d in range(0, side.width, _DIMS_A_LINE):
                rows.ask(k, j, d, side.width)
    queries, weights = scratch, scratch + shape.head_dim * heads.lanes
    load_columns(k, t.queries(token, head), shape.head_dim, shape.group, shape.head_dim, queries, heads.lanes)
    with k.loop(begin, end) as p:
        start = p * PAGE_SIZE
        visible = Visible(k.maximum(first - start, 0), k.minimum(stop - start, PAGE_SIZE))
        page = t.load_page(page_start + p, head, visible)
        following = page_start + k.minimum(p + 1, end - 1)
        if in_place:
            ask = t.rows(t.values, page_start + p, head), t.rows(t.keys, following, head)
        else:
            ask = t.rows(t.keys, following, head), t.rows(t.values, following, head)
        page = replace(page, ask_first=ask[0], ask_then=ask[1])
        attend_page(k, heads, queries, page, visible, weights, out(p), fold=fold)


def _store_token(t: _Tracing, state: Value, token: Value, head: Value) -> None:
    k, shape, heads = t.k, t.shape, t.shape.by_heads
    columns = finish_fold(k, heads, state)
    store_rows(k, columns, heads.lanes, shape.value_dim, shape.group, t.results(token, head), shape.value_dim)


def _attend_run(t: _Tracing, begin: Value, n_run: Value, head: Value) -> None:
    """Tokens of one sequence, one a lane. Lanes without a token repeat the last one."""
    k, shape, tiles = t.k, t.shape, t.shape.by_tokens
    lanes, one_query, one_state = tiles.lanes, shape.head_dim * tiles.lanes, tiles.partial_floats
    weights = t.scratch
    queries = weights + PAGE_SIZE * lanes
    states = queries + shape.group * one_query
    q, stride = t.queries(begin, head), shape.n_heads * shape.head_dim
    with k.loop(0, shape.group) as g:
        load_columns(k, q + g * shape.head_dim, stride, n_run, shape.head_dim, queries + g * one_query, lanes)
        begin_fold(k, tiles, states + g * one_state)
    stop = k.const(vec(i32, lanes), 0)
    for lane in range(lanes):
        stop = k.insert(stop, lane, t.stop(begin + k.minimum(n_run - 1, lane)))
    first = t.first(stop)
    all_see_from, all_see_to = k.reduce_max(first), k.reduce_min(stop)
    lowest, highest = k.reduce_min(first).to(i64), k.reduce_max(stop).to(i64)
    page_start = t.page_start(begin)
    with k.loop(lowest // PAGE_SIZE, (highest + (PAGE_SIZE - 1)) // PAGE_SIZE) as p:
        start = p * PAGE_SIZE
        here = k.splat(start.to(i32), lanes)
        from_, to = k.maximum(lowest - start, 0), k.minimum(highest - start, PAGE_SIZE)
        differ = (all_see_from > (start + from_).to(i32)) | (all_see_to < (start + to).to(i32))
        visible = Visible(from_, to, (first - here, stop - here), differ)
        page = t.load_page(page_start + p, head, visible)
        with k.loop(0, shape.group) as g:
            state = states + g * one_state
            attend_page(k, tiles, queries + g * one_query, page, visible, weights, state, fold=True)
    y, stride = t.results(begin, head), shape.n_heads * shape.value_dim
    with k.loop(0, shape.group) as g:
        columns = finish_fold(k, tiles, states + g * one_state)
        store_rows(k, columns, lanes, shape.value_dim, n_run, y + g * shape.value_dim, stride)
