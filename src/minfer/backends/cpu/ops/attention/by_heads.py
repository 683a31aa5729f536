"""Attention of one token to a page: lanes are dimensions of a head, so that keys, values, queries and results are read
and written as they lie, whatever the number of query heads that share a KV head; a row is read once for all of them.

Scores are sums of 8 lanes each: 8 of them (keys times heads) are added up together, in steps that each join the halves
of two vectors into one. Weights are f32 [64][`weight_lanes`], heads side by side.

A partial result, and the state that pages are folded into, is M and L, f32 [weight_lanes] each, then A, f32
[group][value_dim]; see `arithmetic.py`. Bound by reading K and V, and by fma where they are in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minfer.backends.cpu.ops.attention.arithmetic import LOWEST, N_PARTS, Factors, PackedRows, score, weigh
from minfer.simd import Kernel, Value, f32, i64, vec

_SET = 8
"""Heads that are done at once, and sums that are added up together."""


@dataclass(frozen=True)
class HeadGroup:
    """What the code for a page is traced for. `vector_bytes` decides how values lie in registers, and no bit."""

    group: int
    """query heads that share a KV head"""
    head_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    vector_bytes: int

    @property
    def weight_lanes(self) -> int:
        """Heads with room for weights: a power of two."""
        return 1 << (self.group - 1).bit_length()

    @property
    def value_lanes(self) -> int:
        return self.vector_bytes // 4

    def vectors_at_once(self, n_heads: int) -> int:
        """Vectors of a head's values whose sums are kept in registers side by side: a power of two."""
        # AVX2 has 16 registers, all others 32.
        n = max((12 if self.vector_bytes == 32 else 16) // n_heads, 1)
        return 1 << (n.bit_length() - 1)

    @property
    def partial_floats(self) -> int:
        """Floats of a partial result or a state."""
        return 2 * self.weight_lanes + self.group * self.value_dim


@dataclass(frozen=True)
class TokenPage:
    """A page of one KV head, of which positions from `first` to before `stop` are seen (i64, 0 to 64).

    Rows that lie a stride apart are no stream that a CPU sees by itself: `following`, the keys of the next page, are
    asked for while values are summed up, and this page's values while scores are computed.
    """

    keys: PackedRows
    values: PackedRows
    following: PackedRows
    first: Value
    stop: Value


def attend_page(
    k: Kernel, shape: HeadGroup, queries: Value, page: TokenPage, weights: Value, out: Value, *, fold: bool
) -> None:
    """Writes the partial result of a page to `out`, or folds it into the state there.

    `queries` is f32 [group][head_dim]; `weights` is scratch, f32 [64][weight_lanes].
    """
    lanes = shape.weight_lanes
    for first_head in range(0, shape.group, _SET):
        _score(k, shape, queries, page, weights, first_head)
    largest, total = weigh(k, lanes, page.first, page.stop, weights)
    factors = Factors.between(k, k.load(out, lanes), largest, total) if fold else None
    if factors is None:
        k.store(out, largest)
        k.store(out + lanes, total)
    else:
        k.store(out, factors.largest)
        k.store(out + lanes, factors.fold(k, k.load(out + lanes, lanes), total))
    for first_head in range(0, shape.group, _SET):
        heads = range(first_head, min(first_head + _SET, shape.group))
        n_vectors = shape.vectors_at_once(len(heads))
        for d, masks in _blocks(k, shape.value_dim, shape.value_lanes, n_vectors):
            _sum_values(k, shape, page, weights, heads, d, masks, out + 2 * lanes, factors)


def _score(k: Kernel, shape: HeadGroup, queries: Value, page: TokenPage, weights: Value, first_head: int) -> None:
    """weights[j] = s_j of up to 8 heads, from before `first` to after `stop`: whole blocks of keys."""
    lanes, width = shape.weight_lanes, shape.head_dim
    heads = range(first_head, min(first_head + _SET, shape.group))
    n_places = min(lanes, _SET)
    n_keys = _SET // n_places
    with k.loop(page.first // n_keys * n_keys, page.stop, n_keys) as j:
        zero = k.const(vec(f32, N_PARTS), 0.0)
        sums = [zero] * _SET
        if first_head == 0:
            for i in range(n_keys):
                page.values.ask(k, j + i, 0, shape.value_dim)
        for d in range(0, width, N_PARTS):
            mask = None if d + N_PARTS <= width else k.first_lanes(width - d, N_PARTS)
            keys = [page.keys.load(k, j + i, d, N_PARTS, mask) for i in range(n_keys)]
            for place, head in enumerate(heads):
                q = k.load(queries + (head * width + d), N_PARTS, mask=mask)
                for i, key in enumerate(keys):
                    which = i * n_places + place
                    sums[which] = k.fma(q, key, sums[which])
        k.store(weights + (j * lanes + first_head), score(k, _add_lanes(k, sums), shape.scale, shape.softcap))


def _add_lanes(k: Kernel, vectors: Sequence[Value]) -> Value:
    """The sums over the lanes of 8 vectors of 8 lanes, as `fold_halves` adds them up; that of vector i in lane i."""
    # Which vectors are joined decides where a sum ends up.
    left = [vectors[i] for i in (0, 2, 1, 3, 4, 6, 5, 7)]
    for size in (8, 4, 2):
        # A vector holds sums of `size` lanes. Shuffles within blocks of 4 lanes are the cheapest.
        block = max(size, 4)
        blocks = [range(start, start + block) for start in range(0, N_PARTS, block)]
        first = [i + of for lanes in blocks for of in (0, N_PARTS) for i in lanes if i % size < size // 2]
        second = [i + size // 2 for i in first]
        n = len(left) // 2
        pairs = zip(left[:n], left[n:], strict=True)
        left = [k.shuffle(a, first, b) + k.shuffle(a, second, b) for a, b in pairs]
    return left[0]


def _blocks(k: Kernel, width: int, lanes: int, n_vectors: int) -> Iterator[tuple[Value, Sequence[Value | None]]]:
    """Traces what the caller does with `n_vectors` vectors at once, from dimension d on, and with what is left over:
    d, and a mask for each vector that is not whole."""
    size = lanes * n_vectors
    n_whole = width // size * size
    if n_whole:
        with k.loop(0, n_whole, size) as d:
            yield d, [None] * n_vectors
    if n_whole < width:
        rest = range(n_whole, width, lanes)
        yield (
            k.const(i64, n_whole),
            [None if at + lanes <= width else k.first_lanes(width - at, lanes) for at in rest],
        )


def _sum_values(
    k: Kernel,
    shape: HeadGroup,
    page: TokenPage,
    weights: Value,
    heads: range,
    d: Value,
    masks: Sequence[Value | None],
    out: Value,
    factors: Factors | None,
) -> None:
    """Some vectors of a of some heads, from dimension d on."""
    lanes, zero = shape.value_lanes, k.const(vec(f32, shape.value_lanes), 0.0)
    sums = {(head, i): k.var(zero) for head in heads for i in range(len(masks))}
    with k.loop(page.first, page.stop) as j:
        if heads.start == 0:
            # Of keys that are wider than values, that is a part.
            page.following.ask(k, j, d, lanes * len(masks))
        values = [page.values.load(k, j, d + i * lanes, lanes, mask) for i, mask in enumerate(masks)]
        for head in heads:
            p = k.splat(k.load(weights + (j * shape.weight_lanes + head)), lanes)
            for i, value in enumerate(values):
                each = sums[head, i]
                each.set(k.fma(p, value, each.get()))
    for head in heads:
        ours = None if factors is None else factors.of_lane(k, head, lanes)
        for i, mask in enumerate(masks):
            at = out + (d + (head * shape.value_dim + i * lanes))
            more = sums[head, i].get()
            k.store(at, more if ours is None else ours.fold(k, k.load(at, lanes, mask=mask), more), mask=mask)


def begin_fold(k: Kernel, shape: HeadGroup, state: Value) -> None:
    """Makes a state that of no pages."""
    lanes = shape.weight_lanes
    k.store(state, k.const(vec(f32, lanes), LOWEST))
    with k.loop(lanes, shape.partial_floats) as i:
        k.store(state + i, 0.0)


def fold_page(k: Kernel, shape: HeadGroup, state: Value, partial: Value) -> None:
    """Folds a page's partial result into a state."""
    lanes = shape.weight_lanes
    factors = Factors.between(k, k.load(state, lanes), k.load(partial, lanes), k.load(partial + lanes, lanes))
    k.store(state, factors.largest)
    k.store(state + lanes, factors.fold(k, k.load(state + lanes, lanes), factors.total))
    for head in range(shape.group):
        ours = factors.of_lane(k, head, shape.value_lanes)
        for d, (mask,) in _blocks(k, shape.value_dim, shape.value_lanes, 1):
            at = d + (2 * lanes + head * shape.value_dim)
            a, more = (k.load(of + at, shape.value_lanes, mask=mask) for of in (state, partial))
            k.store(state + at, ours.fold(k, a, more), mask=mask)


def finish_fold(k: Kernel, shape: HeadGroup, state: Value, y: Value) -> None:
    """y, f32 [group][value_dim], is A / L."""
    totals = k.load(state + shape.weight_lanes, shape.weight_lanes)
    for head in range(shape.group):
        total = k.splat(k.extract(totals, head), shape.value_lanes)
        for d, (mask,) in _blocks(k, shape.value_dim, shape.value_lanes, 1):
            at = d + head * shape.value_dim
            a = k.load(state + 2 * shape.weight_lanes + at, shape.value_lanes, mask=mask)
            k.store(y + at, a / total, mask=mask)
