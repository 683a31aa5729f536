"""Attention: `tiles` for prompts, `tokens` for a batch of sequences, `split` and `combine` for a few tokens. One
arithmetic: `arithmetic.py`.

- tiles: a chunk is 16 tokens and one KV head. Tokens of one sequence are done together (`by_tokens.py`): the
  query heads of the group take turns over each page, so that a page is read from memory once. Where a tile has but few
  tokens of a sequence, they are done one after the other (`by_heads.py`).
- tokens: a chunk is one token and one KV head.
- split: a chunk is one token, one of `N_SPLITS` ranges of its pages and one KV head, so that all threads have work
  however few the heads are. Partial results of all pages go to a buffer.
- combine: a chunk is one token and one KV head: folds its pages' partial results in order.

Argument block: 0 q f32 [n, n_heads, head_dim], 1 K region, 2 V region, 3 y f32 [n, n_heads, value_dim], 4 partial
results, 5 for how many pages of a sequence they have room. y must not overlap what is read. Numerics: sums over a
page by fma, pages folded one after the other; the error grows with 64 + head_dim / 8 + the number of pages units
roundoff. Bound by fma at prefill; at decode by reading K and V from memory. Source: Vaswani et al. (2017); the fold is
that of online softmax (Milakov and Gimelshein, 2018); pages: Kwon et al. (2023).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minfer.backends.cpu.convention import (
    StepWord,
    argument,
    argument_pointer,
    step_count,
    step_pointer,
    tape_kernel,
    thread_scratch,
)
from minfer.backends.cpu.ops.attention import by_heads, by_tokens
from minfer.backends.cpu.ops.attention.arithmetic import PackedRows
from minfer.backends.cpu.ops.attention.by_heads import HeadGroup, TokenPage
from minfer.backends.cpu.ops.attention.by_tokens import Page, TokenLanes, Visible
from minfer.backends.cpu.ops.attention.transpose import load_columns, store_rows
from minfer.backends.cpu.ops.kv_rows import cell_bytes, load_row
from minfer.errors import UnsupportedError
from minfer.graph import PAGE_SIZE
from minfer.quants import GGMLType, row_bytes
from minfer.simd import KernelIR, Value, f32, i32, i64, u8, vec

TILE_TOKENS = 16
N_SPLITS = 8
MAX_SPLIT_ROWS = 4
"""Up to so many tokens, split and combine are used."""
MAX_TOKEN_ROWS = 24
"""Up to so many tokens, those that are not split are chunks of their own. Measured on two threads: 8 to 22 % faster
than tiles with 3 KV heads, as fast with 2, where tiles share out evenly; 32 tokens are faster in tiles."""
CACHE_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)


@dataclass(frozen=True)
class AttentionShape:
    """What a kernel is traced for.

    `vector_bytes` is the target's: it decides how many sums are kept in registers. Neither that nor `min_run` changes a
    bit of a result.

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
    min_run: int = 14
    """Tokens of one sequence in a tile from which on they are done together. Measured with groups of 3, 6 and 7: alone,
    15 take as long as 16 together."""
    softcap: float | None = None

    def __post_init__(self) -> None:
        for name, ggml_type in (("keys", self.k_type), ("values", self.v_type)):
            if ggml_type not in CACHE_TYPES:
                raise UnsupportedError(f"a cache of {name} in {ggml_type.name}", [each.name for each in CACHE_TYPES])

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def heads(self) -> HeadGroup:
        return HeadGroup(self.group, self.head_dim, self.value_dim, self.scale, self.softcap, self.vector_bytes)

    @property
    def tokens(self) -> TokenLanes:
        return TokenLanes(TILE_TOKENS, self.head_dim, self.value_dim, self.scale, self.softcap, self.vector_bytes)

    @property
    def page_floats(self) -> int:
        """Floats of a page of keys and values that had to be converted."""
        k = 0 if self.k_type is GGMLType.F32 else PAGE_SIZE * self.head_dim
        v = 0 if self.v_type is GGMLType.F32 else PAGE_SIZE * self.value_dim
        return k + v

    def partials_bytes(self, max_pages: int) -> int:
        """Bytes of the buffer of partial results, for sequences of up to so many pages."""
        return 4 * MAX_SPLIT_ROWS * self.n_kv_heads * max_pages * self.heads.partial_floats

    @property
    def tiles_scratch_bytes(self) -> int:
        """Bytes that `tiles` needs: room for converted pages, and the queries and states of a run; or for a token."""
        lanes, a_state = self.tokens.lanes, self.tokens.state_floats
        a_run = self.page_floats + self.group * (self.head_dim * lanes + a_state) + PAGE_SIZE * lanes
        return max(4 * a_run, self.split_scratch_bytes)

    @property
    def split_scratch_bytes(self) -> int:
        """Bytes that `tokens`, `split` and `combine` need: weights and a state."""
        return 4 * (PAGE_SIZE * self.heads.weight_lanes + self.heads.partial_floats)


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
        self.scratch = thread_scratch(self.k).cast(f32)

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
        one = shape.heads.partial_floats
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
        return PackedRows(region.offset_bytes(start), side.stride_bytes, side.width, side.ggml_type)

    def load_page(self, index: Value, head: Value, visible: Visible) -> Page:
        """A page as f32: in place, or converted, at the beginning of the scratch memory."""
        keys = self._as_f32(self.keys, index, head, visible, self.scratch)
        room = self.scratch if self.shape.k_type is GGMLType.F32 else self.scratch + PAGE_SIZE * self.shape.head_dim
        return Page(*keys, *self._as_f32(self.values, index, head, visible, room))

    def _as_f32(self, side: _Side, index: Value, head: Value, visible: Visible, room: Value) -> tuple[Value, int]:
        k, rows = self.k, self.rows(side, index, head)
        if side.ggml_type is GGMLType.F32:
            return rows.start.cast(f32), side.stride_bytes // 4
        with k.loop(visible.first, visible.stop) as j:
            load_row(k, rows.row(j), room + j * side.width, side.width, side.ggml_type)
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
        one = shape.heads.partial_floats
        _attend_token(t, token, head, (begin, end), lambda p: partials + p * one, fold=False)
    return k.finish()


def trace_attention_combine(shape: AttentionShape) -> KernelIR:
    """The fold of all pages of one token and KV head."""
    t = _Tracing(shape, "attention_combine")
    k, heads, state = t.k, shape.heads, t.scratch
    token, head = t.chunk // shape.n_kv_heads, t.chunk % shape.n_kv_heads
    partials = t.partials(token, head)
    by_heads.begin_fold(k, heads, state)
    with k.loop(*t.pages(token)) as p:
        by_heads.fold_page(k, heads, state, partials + p * heads.partial_floats)
    by_heads.finish_fold(k, heads, state, t.results(token, head))
    return k.finish()


def trace_attention_tokens(shape: AttentionShape) -> KernelIR:
    """One token and one KV head."""
    t = _Tracing(shape, "attention_tokens")
    _attend_whole_token(t, t.chunk // shape.n_kv_heads, t.chunk % shape.n_kv_heads)
    return t.k.finish()


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
            _attend_whole_token(t, token, head)
        at.set(after.get())
    return k.finish()


def _attend_whole_token(t: _Tracing, token: Value, head: Value) -> None:
    heads = t.shape.heads
    state = t.scratch + PAGE_SIZE * heads.weight_lanes
    by_heads.begin_fold(t.k, heads, state)
    _attend_token(t, token, head, t.pages(token), lambda _: state, fold=True)
    by_heads.finish_fold(t.k, heads, state, t.results(token, head))


def _attend_token(
    t: _Tracing, token: Value, head: Value, pages: tuple[Value, Value], out: Callable[[Value], Value], *, fold: bool
) -> None:
    """A token attends to pages, from the first to before the last, at least one. `out` tells where the result of a page
    goes."""
    k, shape = t.k, t.shape
    begin, end = pages
    page_start = t.page_start(token)
    stop = t.stop(token).to(i64)
    first = t.first(stop)
    keys = t.rows(t.keys, page_start + begin, head)
    with k.loop(0, PAGE_SIZE) as j:
        keys.ask(k, j, 0, shape.head_dim)
    with k.loop(begin, end) as p:
        start = p * PAGE_SIZE
        page = TokenPage(
            keys=t.rows(t.keys, page_start + p, head),
            values=t.rows(t.values, page_start + p, head),
            following=t.rows(t.keys, page_start + k.minimum(p + 1, end - 1), head),
            first=k.maximum(first - start, 0),
            stop=k.minimum(stop - start, PAGE_SIZE),
        )
        by_heads.attend_page(k, shape.heads, t.queries(token, head), page, t.scratch, out(p), fold=fold)


def _attend_run(t: _Tracing, begin: Value, n_run: Value, head: Value) -> None:
    """Tokens of one sequence, one a lane. Lanes without a token repeat the last one."""
    k, shape, tiles = t.k, t.shape, t.shape.tokens
    lanes, one_query, one_state = tiles.lanes, shape.head_dim * tiles.lanes, tiles.state_floats
    weights = t.scratch + shape.page_floats
    queries = weights + PAGE_SIZE * lanes
    states = queries + shape.group * one_query
    q, stride = t.queries(begin, head), shape.n_heads * shape.head_dim
    with k.loop(0, shape.group) as g:
        load_columns(k, q + g * shape.head_dim, stride, n_run, shape.head_dim, queries + g * one_query, lanes)
        by_tokens.begin_fold(k, tiles, states + g * one_state)
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
            by_tokens.attend_page(k, tiles, queries + g * one_query, page, visible, weights, state)
    y, stride = t.results(begin, head), shape.n_heads * shape.value_dim
    with k.loop(0, shape.group) as g:
        columns = by_tokens.finish_fold(k, tiles, states + g * one_state)
        store_rows(k, columns, lanes, shape.value_dim, n_run, y + g * shape.value_dim, stride)
