"""Attention of up to 16 tokens of one sequence to a page: lanes are the tokens, and a key's or value's element is a
scalar that is broadcast, so that nothing is reduced across lanes.

A state is f32 [2 + value_dim][lanes]: M, L, A[0], A[1], ... of `arithmetic.py`. Bound by fma.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.ops.attention.arithmetic import LOWEST, N_PARTS, PART_ORDER, Factors, score, weigh
from minfer.simd import Kernel, Value, f32, i32, i64, vec


@dataclass(frozen=True)
class TokenLanes:
    """What the code for a page is traced for. `vector_bytes` decides how many sums are kept in registers."""

    lanes: int
    head_dim: int
    value_dim: int
    scale: float
    softcap: float | None
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
        """Keys whose scores are summed up side by side: each needs up to four sums."""
        return max(self.dims_at_once // 4, 2)

    @property
    def state_floats(self) -> int:
        return (2 + self.value_dim) * self.lanes


@dataclass(frozen=True)
class Page:
    """A page of one KV head as f32: key j at `keys + j * key_stride`, value j at `values + j * value_stride`."""

    keys: Value
    key_stride: int
    values: Value
    value_stride: int


@dataclass(frozen=True)
class Visible:
    """Which positions of the page the lanes see: [first, stop), numbers (i64) from 0 to 64.

    `limits` holds the first position of each lane and the one after its last (vectors of i32, which may lie outside of
    the page), and `differ` (i1) tells whether some lane sees less than [first, stop).
    """

    first: Value
    stop: Value
    limits: tuple[Value, Value]
    differ: Value


def attend_page(
    k: Kernel, shape: TokenLanes, queries: Value, page: Page, visible: Visible, weights: Value, state: Value
) -> None:
    """Folds a page into the state. `queries` is f32 [head_dim][lanes]; `weights` is scratch, f32 [64][lanes]."""
    lanes = shape.lanes
    _score(k, shape, queries, page, visible, weights)
    _mask(k, shape, visible, weights)
    largest, total = weigh(k, lanes, visible.first, visible.stop, weights)
    factors = Factors.between(k, k.load(state, lanes), largest, total)
    k.store(state, factors.largest)
    k.store(state + lanes, factors.fold(k, k.load(state + lanes, lanes), total))
    n_dims = min(shape.dims_at_once, shape.value_dim)
    n_whole = shape.value_dim // n_dims * n_dims
    with k.loop(0, n_whole, n_dims) as d:
        _sum_values(k, shape, page, visible, weights, d, n_dims, state, factors)
    if n_whole < shape.value_dim:
        rest = k.const(i64, n_whole)
        _sum_values(k, shape, page, visible, weights, rest, shape.value_dim - n_whole, state, factors)


def _score(k: Kernel, shape: TokenLanes, queries: Value, page: Page, visible: Visible, weights: Value) -> None:
    """weights[j] = s_j, from before `first` to after `stop`: whole blocks of keys."""
    lanes, n_keys = shape.lanes, shape.keys_at_once
    with k.loop(visible.first // n_keys * n_keys, visible.stop, n_keys) as j:
        keys = [page.keys + (j + i) * page.key_stride for i in range(n_keys)]
        # Sums that wait for their other half: of two parts, then of four.
        waiting: list[tuple[int, list[Value]]] = []
        for pair in PART_ORDER:
            sums = [_sum_parts(k, shape, queries, key, pair) for key in keys]
            size = 2
            while waiting and waiting[-1][0] == size:
                sums = [a + b for a, b in zip(waiting.pop()[1], sums, strict=True)]
                size *= 2
            waiting.append((size, sums))
        ((_, sums),) = waiting
        for i, each in enumerate(sums):
            k.store(weights + (j + i) * lanes, score(k, each, shape.scale, shape.softcap))


def _sum_parts(k: Kernel, shape: TokenLanes, queries: Value, key: Value, pair: tuple[int, int]) -> Value:
    """The sum of two parts of q k."""
    parts = []
    for part in pair:
        dot = k.const(vec(f32, shape.lanes), 0.0)
        for d in range(part, shape.head_dim, N_PARTS):
            q = k.load(queries + d * shape.lanes, shape.lanes)
            dot = k.fma(q, k.splat(k.load(key + d), shape.lanes), dot)
        parts.append(dot)
    return parts[0] + parts[1]


def _mask(k: Kernel, shape: TokenLanes, visible: Visible, weights: Value) -> None:
    with k.if_(visible.differ), k.loop(visible.first, visible.stop) as j:
        at = weights + j * shape.lanes
        k.store(at, k.select(_sees(k, visible.limits, j), k.load(at, shape.lanes), float("-inf")))


def _sum_values(
    k: Kernel,
    shape: TokenLanes,
    page: Page,
    visible: Visible,
    weights: Value,
    d: Value,
    n_dims: int,
    state: Value,
    factors: Factors,
) -> None:
    """a[d], a[d + 1], ... of the page, folded into the state."""
    lanes = shape.lanes
    sums = [k.var(k.const(vec(f32, lanes), 0.0)) for _ in range(n_dims)]

    def add(j: Value, sees: Value | None) -> None:
        p = k.load(weights + j * lanes, lanes)
        at = page.values + j * page.value_stride + d
        for i, each in enumerate(sums):
            more = k.fma(p, k.splat(k.load(at + i), lanes), each.get())
            each.set(more if sees is None else k.select(sees, more, each.get()))

    with k.if_(visible.differ), k.loop(visible.first, visible.stop) as j:
        add(j, _sees(k, visible.limits, j))
    with k.else_(), k.loop(visible.first, visible.stop) as j:
        add(j, None)
    for i, each in enumerate(sums):
        at = state + (d + (i + 2)) * lanes
        k.store(at, factors.fold(k, k.load(at, lanes), each.get()))


def _sees(k: Kernel, limits: tuple[Value, Value], j: Value) -> Value:
    first, stop = limits
    position = k.splat(j.to(i32), first.lanes)
    return (position >= first) & (position < stop)


def begin_fold(k: Kernel, shape: TokenLanes, state: Value) -> None:
    """Makes a state that of no pages."""
    of = vec(f32, shape.lanes)
    k.store(state, k.const(of, LOWEST))
    with k.loop(1, shape.value_dim + 2) as i:
        k.store(state + i * shape.lanes, k.const(of, 0.0))


def finish_fold(k: Kernel, shape: TokenLanes, state: Value) -> Value:
    """Divides A by L, in place; where it is."""
    lanes = shape.lanes
    total = k.load(state + lanes, lanes)
    with k.loop(2, shape.value_dim + 2) as i:
        k.store(state + i * lanes, k.load(state + i * lanes, lanes) / total)
    return state + 2 * lanes
