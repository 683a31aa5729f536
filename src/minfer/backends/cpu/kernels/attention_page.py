"""The arithmetic of attention over one page, and the fold of pages into a result: what every path of attention is
made of.

SIMD lanes are queries, not dimensions: a key's or value's element is a scalar that is broadcast, and nothing is
reduced across lanes. For a lane (a token and a query head) and the positions j of a page that it sees, in order:

    s_j = scale * (sum over d of q[d] k_j[d], by fma in the order of d)      m = max s_j
    p_j = exp(s_j - m)      l = sum p_j      a[d] = sum over j of p_j v_j[d], by fma

and pages are folded from the first to the last:

    M' = max(M, m)   alpha = exp(M - M')   beta = exp(m - M')   L' = L alpha + l beta   A'[d] = fma(A[d], alpha, a[d]
    beta)

all in float32, and y = A / L. Each lane's operations are the same in every path, so its bits are too. What a lane
does not see is selected away, and contributes nothing also where it is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minfer.simd import Kernel, Value, f32, i32, vec

KEYS_AT_ONCE = 8
VALUES_AT_ONCE = 16
PAGE = 64
NEGATIVE_INFINITY = float("-inf")
_FLOATS_A_LINE = 16


@dataclass(frozen=True)
class Page:
    """A page of one KV head as f32: key j at `keys + j * key_stride`, value j at `values + j * value_stride`."""

    keys: Value
    key_stride: int
    values: Value
    value_stride: int
    ahead: tuple[Value, Value] | None = None
    """where the next page's keys and values begin, for pages that are read from memory once: they are asked for early,
    since rows that lie a stride apart are no stream that a CPU sees by itself"""


@dataclass(frozen=True)
class Visible:
    """Which positions of the page the lanes see: lane i those from `low[i]` to before `high[i]` (vectors of i32).

    `n_keys` (i64) is the largest `high`, at most 64; `uniform` (i1) tells whether every lane in use sees all of [0,
    n_keys).
    """

    low: Value
    high: Value
    n_keys: Value
    uniform: Value


def partial_floats(lanes: int, value_dim: int) -> int:
    """Floats of a partial result: m, l, then a[d], each for all lanes."""
    return (2 + value_dim) * lanes


def attend_page(
    k: Kernel,
    queries: Value,
    page: Page,
    visible: Visible,
    weights: Value,
    out: Value,
    *,
    lanes: int,
    dims: tuple[int, int],
    scale: float,
) -> None:
    """Writes the partial result of a page to `out`. `queries` is f32 [head_dim][lanes], `weights` scratch f32
    [64][lanes]."""
    head_dim, value_dim = dims
    of = vec(f32, lanes)
    largest = k.var(k.const(of, NEGATIVE_INFINITY))
    with k.loop(0, visible.n_keys, KEYS_AT_ONCE) as first:
        _ask_ahead(k, page, first, dims)
        dots = [k.var(k.const(of, 0.0)) for _ in range(KEYS_AT_ONCE)]
        with k.loop(0, head_dim) as d:
            q = k.load(queries + d * lanes, lanes)
            for i, dot in enumerate(dots):
                key = k.splat(k.load(page.keys + (first + i) * page.key_stride + d), lanes)
                dot.set(k.fma(q, key, dot.get()))
        for i, dot in enumerate(dots):
            score = k.select(_sees(k, visible, first + i, lanes), dot.get() * scale, NEGATIVE_INFINITY)
            k.store(weights + (first + i) * lanes, score)
            largest.set(k.maximum(score, largest.get()))
    m = largest.get()
    # A lane that sees nothing here has m = -inf, and its weights must be 0, not NaN.
    shift = k.select(m > NEGATIVE_INFINITY, m, 0.0)
    total = k.var(k.const(of, 0.0))
    with k.loop(0, visible.n_keys) as j:
        p = k.exp(k.load(weights + j * lanes, lanes) - shift)
        k.store(weights + j * lanes, p)
        total.set(total.get() + p)
    k.store(out, m)
    k.store(out + lanes, total.get())
    step = math.gcd(value_dim, VALUES_AT_ONCE)
    with k.loop(0, value_dim, step) as d:
        sums = [k.var(k.const(of, 0.0)) for _ in range(step)]
        with k.if_(visible.uniform), k.loop(0, visible.n_keys) as j:
            p = k.load(weights + j * lanes, lanes)
            for i, each in enumerate(sums):
                value = k.splat(k.load(page.values + j * page.value_stride + d + i), lanes)
                each.set(k.fma(p, value, each.get()))
        with k.else_(), k.loop(0, visible.n_keys) as j:
            p, sees = k.load(weights + j * lanes, lanes), _sees(k, visible, j, lanes)
            for i, each in enumerate(sums):
                value = k.splat(k.load(page.values + j * page.value_stride + d + i), lanes)
                each.set(k.select(sees, k.fma(p, value, each.get()), each.get()))
        for i, each in enumerate(sums):
            k.store(out + (d + i + 2) * lanes, each.get())


def _ask_ahead(k: Kernel, page: Page, first: Value, dims: tuple[int, int]) -> None:
    if page.ahead is None:
        return
    sides = zip(page.ahead, (page.key_stride, page.value_stride), dims, strict=True)
    for start, stride, width in sides:
        for i in range(KEYS_AT_ONCE):
            for d in range(0, width, _FLOATS_A_LINE):
                k.prefetch(start + (first + i) * stride + d)


def _sees(k: Kernel, visible: Visible, j: Value, lanes: int) -> Value:
    position = k.splat(j.to(i32), lanes)
    return (position >= visible.low) & (position < visible.high)


def begin_fold(k: Kernel, state: Value, *, lanes: int, value_dim: int) -> None:
    """Makes `state` (M, L, A, laid out as a partial result) that of no pages."""
    of = vec(f32, lanes)
    k.store(state, k.const(of, NEGATIVE_INFINITY))
    with k.loop(1, value_dim + 2) as i:
        k.store(state + i * lanes, k.const(of, 0.0))


def fold_page(k: Kernel, state: Value, partial: Value, *, lanes: int, value_dim: int) -> None:
    """Folds a page's partial result into the state; lanes that saw nothing of the page stay as they are."""
    before, m = k.load(state, lanes), k.load(partial, lanes)
    sees = m > NEGATIVE_INFINITY
    after = k.maximum(before, m)
    shift = k.select(sees, after, 0.0)
    alpha, beta = k.exp(before - shift), k.exp(m - shift)
    k.store(state, k.select(sees, after, before))
    with k.loop(1, value_dim + 2) as i:
        old = k.load(state + i * lanes, lanes)
        new = k.fma(old, alpha, k.load(partial + i * lanes, lanes) * beta)
        k.store(state + i * lanes, k.select(sees, new, old))


def finish_fold(k: Kernel, state: Value, *, lanes: int, value_dim: int) -> None:
    """Divides A by L, in place."""
    total = k.load(state + lanes, lanes)
    with k.loop(2, value_dim + 2) as i:
        k.store(state + i * lanes, k.load(state + i * lanes, lanes) / total)
