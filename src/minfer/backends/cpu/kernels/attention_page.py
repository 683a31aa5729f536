"""The arithmetic of attention over one page, and the fold of pages into a result: what every path of attention is
made of.

SIMD lanes are queries, not dimensions: a key's or value's element is a scalar that is broadcast, and nothing is
reduced across lanes. For a lane (a token and a query head) and the positions j of a page that it sees, in order:

    s_j = scale * (sum over d of q[d] k_j[d], by fma in the order of d)      m = max s_j
    p_j = exp(s_j - m)      l = sum p_j      a[d] = sum over j of p_j v_j[d], by fma

and pages are folded from the first to the last:

    M' = max(M, m)   alpha = exp(M - M')   beta = exp(m - M')
    L' = fma(L, alpha, l beta)   A'[d] = fma(A[d], alpha, a[d] beta)

all in float32, and y = A / L. Each lane's operations are the same in every path, so its bits are too. What a lane
does not see is selected away, and contributes nothing also where it is NaN.

A partial result, and the state that pages are folded into, is f32 [2 + value_dim][lanes]: m, l, a[0], a[1], ...
Maxima start from the lowest float rather than from -inf: differences of maxima are then never NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from minfer.simd import Kernel, Value, Var, f32, i32, i64, vec

LOWEST: float = struct.unpack("f", struct.pack("I", 0xFF7FFFFF))[0]
"""The lowest finite float32."""
_UNROLL = 8
"""Dimensions of a key that are read in one go."""
_WIDE = 16
"""Lanes of the work that is the same for all lanes: narrow vectors are done several at a time."""


@dataclass(frozen=True)
class PageShape:
    """What the code for a page is traced for."""

    lanes: int
    head_dim: int
    value_dim: int
    scale: float
    vector_bytes: int

    @property
    def dims_at_once(self) -> int:
        """Dimensions of the values whose sums are kept in registers side by side: a power of two."""
        # AVX2 has 16 registers, all others 32; half of them are left for sums.
        n_registers = 8 if self.vector_bytes == 32 else 16
        n = max(n_registers // max(4 * self.lanes // self.vector_bytes, 1), 1)
        return 1 << (n.bit_length() - 1)

    @property
    def keys_at_once(self) -> int:
        """Keys whose scores are summed up side by side: a power of two. No more than 8, since rows that are a power of
        two apart share 8 lines of a first-level cache."""
        return min(self.dims_at_once, 8)

    @property
    def partial_floats(self) -> int:
        """Floats of a partial result or a state."""
        return (2 + self.value_dim) * self.lanes

    @property
    def wide(self) -> int:
        """Lanes of the vectors in which weights are computed and results folded: a multiple of `lanes`."""
        return max(_WIDE // self.lanes, 1) * self.lanes


@dataclass(frozen=True)
class PackedRows:
    """64 rows of the cache, as they are: row j at `start` (u8) + j * stride_bytes."""

    start: Value
    stride_bytes: int
    row_bytes: int

    def ask(self, k: Kernel, j: Value, d: Value | int, of: int) -> None:
        """Asks for the cache line of row j that holds dimension d of `of`. More requests to the second level of the
        cache can be under way than to the first."""
        offset = d * self.row_bytes // of
        k.prefetch(self.start.offset_bytes(j * self.stride_bytes).offset_bytes(offset), locality=2)


@dataclass(frozen=True)
class Page:
    """A page of one KV head as f32: key j at `keys + j * key_stride`, value j at `values + j * value_stride`.

    Rows that lie a stride apart are no stream that a CPU sees by itself. Where pages are read from memory once, some
    are asked for in time: `ask_first` while scores are computed, `ask_then` while values are summed up.
    """

    keys: Value
    key_stride: int
    values: Value
    value_stride: int
    ask_first: PackedRows | None = None
    ask_then: PackedRows | None = None


@dataclass(frozen=True)
class Visible:
    """Which positions of the page the lanes see: [first, stop), numbers (i64) from 0 to 64.

    Where lanes differ, `limits` holds the first position of each and the one after its last (vectors of i32, which may
    lie outside of the page), and `differ` (i1) tells whether some lane sees less than [first, stop).
    """

    first: Value
    stop: Value
    limits: tuple[Value, Value] | None = None
    differ: Value | None = None

    @contextmanager
    def where_lanes_differ(self, k: Kernel) -> Iterator[tuple[Value, Value]]:
        """Traces a branch for that case, with the limits."""
        assert self.limits is not None
        assert self.differ is not None
        with k.if_(self.differ):
            yield self.limits


def attend_page(
    k: Kernel, shape: PageShape, queries: Value, page: Page, visible: Visible, weights: Value, out: Value, *, fold: bool
) -> None:
    """Writes the partial result of a page to `out`, or folds it into the state there.

    `queries` is f32 [head_dim][lanes]; `weights` is scratch, f32 [64][lanes].
    """
    _score(k, shape, queries, page, visible, weights)
    if visible.limits is not None:
        _mask(k, shape, visible, weights)
    largest, total = _weigh(k, shape, visible, weights)
    factors = None
    if fold:
        factors = _Factors.between(k, k.load(out, shape.lanes), largest, total)
        k.store(out, factors.largest)
        k.store(out + shape.lanes, factors.fold(k, k.load(out + shape.lanes, shape.lanes), total))
    else:
        k.store(out, largest)
        k.store(out + shape.lanes, total)
    n_dims = min(shape.dims_at_once, shape.value_dim)
    n_whole = shape.value_dim // n_dims * n_dims
    with k.loop(0, n_whole, n_dims) as d:
        _sum_values(k, shape, page, visible, weights, d, n_dims, out, factors)
    if n_whole < shape.value_dim:
        rest = k.const(i64, n_whole)
        _sum_values(k, shape, page, visible, weights, rest, shape.value_dim - n_whole, out, factors)


def _score(k: Kernel, shape: PageShape, queries: Value, page: Page, visible: Visible, weights: Value) -> None:
    """weights[j] = s_j, from before `first` to after `stop`: whole blocks of keys."""
    lanes, n_keys = shape.lanes, shape.keys_at_once
    n_whole = shape.head_dim // _UNROLL * _UNROLL
    with k.loop(visible.first // n_keys * n_keys, visible.stop, n_keys) as j:
        dots = [k.var(k.const(vec(f32, lanes), 0.0)) for _ in range(n_keys)]
        keys = page.keys + j * page.key_stride

        def add(d: Value | int, n_dims: int, keys: Value = keys, dots: Sequence[Var] = dots) -> None:
            for i in range(n_dims):
                q = k.load(queries + (d + i) * lanes, lanes)
                for which, dot in enumerate(dots):
                    key = k.splat(k.load(keys + (d + i) + which * page.key_stride), lanes)
                    dot.set(k.fma(q, key, dot.get()))

        with k.loop(0, n_whole, _UNROLL) as d:
            if page.ask_first is not None:
                for which in range(n_keys):
                    page.ask_first.ask(k, j + which, d, shape.head_dim)
            add(d, _UNROLL)
        add(n_whole, shape.head_dim - n_whole)
        for which, dot in enumerate(dots):
            k.store(weights + (j + which) * lanes, dot.get() * shape.scale)


def _mask(k: Kernel, shape: PageShape, visible: Visible, weights: Value) -> None:
    with visible.where_lanes_differ(k) as limits, k.loop(visible.first, visible.stop) as j:
        at = weights + j * shape.lanes
        k.store(at, k.select(_sees(k, limits, j), k.load(at, shape.lanes), float("-inf")))


def _weigh(k: Kernel, shape: PageShape, visible: Visible, weights: Value) -> tuple[Value, Value]:
    """Makes weights p of the scores, in place; m and l."""
    lanes, n_at_once = shape.lanes, shape.wide // shape.lanes
    largest = k.var(k.const(vec(f32, lanes), LOWEST))
    with k.loop(visible.first, visible.stop) as j:
        largest.set(k.maximum(k.load(weights + j * lanes, lanes), largest.get()))
    m = largest.get()
    shift = repeat(k, m, n_at_once)
    with k.loop(visible.first // n_at_once * n_at_once, visible.stop, n_at_once) as j:
        at = weights + j * lanes
        k.store(at, k.exp(k.load(at, shape.wide) - shift))
    total = k.var(k.const(vec(f32, lanes), 0.0))
    with k.loop(visible.first, visible.stop) as j:
        total.set(total.get() + k.load(weights + j * lanes, lanes))
    return m, total.get()


def _sum_values(
    k: Kernel,
    shape: PageShape,
    page: Page,
    visible: Visible,
    weights: Value,
    d: Value,
    n_dims: int,
    out: Value,
    factors: _Factors | None,
) -> None:
    """a[d], a[d + 1], ... of the page."""
    lanes = shape.lanes
    sums = [k.var(k.const(vec(f32, lanes), 0.0)) for _ in range(n_dims)]

    def add(j: Value, sees: Value | None) -> None:
        p = k.load(weights + j * lanes, lanes)
        at = page.values + j * page.value_stride + d
        for i, each in enumerate(sums):
            more = k.fma(p, k.splat(k.load(at + i), lanes), each.get())
            each.set(more if sees is None else k.select(sees, more, each.get()))

    def add_all() -> None:
        with k.loop(visible.first, visible.stop) as j:
            if page.ask_then is not None:
                page.ask_then.ask(k, j, d, shape.value_dim)
            add(j, None)

    if visible.limits is None:
        add_all()
    else:
        with visible.where_lanes_differ(k) as limits, k.loop(visible.first, visible.stop) as j:
            add(j, _sees(k, limits, j))
        with k.else_():
            add_all()
    for i, each in enumerate(sums):
        at = out + (d + (i + 2)) * lanes
        k.store(at, each.get() if factors is None else factors.fold(k, k.load(at, lanes), each.get()))


def _sees(k: Kernel, limits: tuple[Value, Value], j: Value) -> Value:
    first, stop = limits
    position = k.splat(j.to(i32), first.lanes)
    return (position >= first) & (position < stop)


@dataclass(frozen=True)
class _Factors:
    """How a partial result joins a state. Where a lane saw nothing of the page, or nothing but scores of -inf, its l is
    0, and its state stays as it is."""

    largest: Value
    alpha: Value
    beta: Value
    total: Value

    @classmethod
    def between(cls, k: Kernel, before: Value, largest: Value, total: Value) -> _Factors:
        """Of M, m and l."""
        after = k.maximum(before, largest)
        return cls(after, k.exp(before - after), k.exp(largest - after), total)

    def repeated(self, k: Kernel, n: int) -> _Factors:
        return _Factors(*(repeat(k, each, n) for each in (self.largest, self.alpha, self.beta, self.total)))

    def fold(self, k: Kernel, state: Value, partial: Value) -> Value:
        # Where nothing was seen, alpha is 1, and adding -0 changes no bit. NaN differs from 0: it gets through.
        added = k.select(self.total.ne(0.0), partial * self.beta, -0.0)
        return k.fma(state, self.alpha, added)


def begin_fold(k: Kernel, shape: PageShape, state: Value) -> None:
    """Makes a state that of no pages."""
    of = vec(f32, shape.lanes)
    k.store(state, k.const(of, LOWEST))
    with k.loop(1, shape.value_dim + 2) as i:
        k.store(state + i * shape.lanes, k.const(of, 0.0))


def fold_page(k: Kernel, shape: PageShape, state: Value, partial: Value) -> None:
    """Folds a page's partial result into a state."""
    lanes, n_at_once = shape.lanes, shape.wide // shape.lanes
    factors = _Factors.between(k, k.load(state, lanes), k.load(partial, lanes), k.load(partial + lanes, lanes))
    k.store(state, factors.largest)
    n_rows = shape.value_dim + 1
    n_whole = n_rows // n_at_once * n_at_once
    several = factors.repeated(k, n_at_once)
    with k.loop(lanes, (1 + n_whole) * lanes, shape.wide) as at:
        k.store(state + at, several.fold(k, k.load(state + at, shape.wide), k.load(partial + at, shape.wide)))
    for row in range(1 + n_whole, 1 + n_rows):
        at_row = row * lanes
        k.store(state + at_row, factors.fold(k, k.load(state + at_row, lanes), k.load(partial + at_row, lanes)))


def finish_fold(k: Kernel, shape: PageShape, state: Value) -> Value:
    """Divides A by L, in place; where it is."""
    lanes = shape.lanes
    total = k.load(state + lanes, lanes)
    with k.loop(2, shape.value_dim + 2) as i:
        k.store(state + i * lanes, k.load(state + i * lanes, lanes) / total)
    return state + 2 * lanes


def repeat(k: Kernel, x: Value, n: int) -> Value:
    """The lanes of x, n times."""
    return x if n == 1 else k.shuffle(x, [*range(x.lanes)] * n)
