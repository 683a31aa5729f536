"""The arithmetic of attention over one page, and the fold of pages into a result: what every path of attention shares.

For a token and a query head, and the positions j of a page that it sees:

    s_j = scale * (sum over d of q[d] k_j[d]), soft-capped where there is a cap      m = max s_j
    p_j = exp(s_j - m)      l = sum p_j      a[d] = sum over j of p_j v_j[d], by fma in the order of j

and pages are folded from the first to the last:

    M' = max(M, m)   alpha = exp(M - M')   beta = exp(m - M')
    L' = fma(L, alpha, l beta)   A'[d] = fma(A[d], alpha, a[d] beta)

all in float32, and y = A / L. The sums of s_j and l are made of `N_PARTS` parts: part i over d or j = i, i + 8, i + 16,
... in order, by fma or addition; then the second half of the parts is added to the first, three times. Paths whose SIMD
lanes are queries and paths whose lanes are dimensions can both do that, so a result's bits are the same in every path.
What is not seen is selected away or weighs 0 exactly, and contributes nothing also where it is NaN.

Maxima start from the lowest float rather than from -inf: differences of maxima are then never NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minfer.backends.cpu.ops.activate import softcap
from minfer.backends.cpu.ops.kv_rows import load_values
from minfer.quants import GGMLType, row_bytes
from minfer.simd import Kernel, Value, f32, vec

N_PARTS = 8
PART_ORDER = ((0, 4), (2, 6), (1, 5), (3, 7))
"""The parts in the order in which their sums can be added up with the fewest left waiting."""
LOWEST: float = struct.unpack("f", struct.pack("I", 0xFF7FFFFF))[0]
"""The lowest finite float32."""
_WIDE = 16
_LINE_BYTES = 64


@dataclass(frozen=True)
class PackedRows:
    """64 rows of the cache, as they are: row j at `start` (u8) + j * stride_bytes."""

    start: Value
    stride_bytes: int
    width: int
    ggml_type: GGMLType

    def row(self, j: Value) -> Value:
        return self.start.offset_bytes(j * self.stride_bytes)

    def load(self, k: Kernel, j: Value, d: Value | int, lanes: int, mask: Value | None = None) -> Value:
        """Dimensions d, d + 1, ... of row j as f32."""
        return load_values(k, self.row(j), d, lanes, self.ggml_type, mask)

    def ask(self, k: Kernel, j: Value, d: Value | int, n_dims: int) -> None:
        """Asks for the cache lines of row j that hold `n_dims` dimensions from d on, a multiple of 8. More requests to
        the second level of the cache can be under way than to the first."""
        of_row = row_bytes(self.ggml_type, self.width)
        first = self.row(j).offset_bytes(d * of_row // self.width)
        for offset in range(0, n_dims * of_row // self.width, _LINE_BYTES):
            k.prefetch(first.offset_bytes(offset), locality=2)


def score(k: Kernel, dots: Value, scale: float, cap: float | None) -> Value:
    """s of sums q k."""
    return dots * scale if cap is None else softcap(k, dots * scale, cap)


def weigh(k: Kernel, lanes: int, first: Value, stop: Value, weights: Value) -> tuple[Value, Value]:
    """Makes weights p of scores, in place; m and l (vectors of f32).

    `weights` is f32 [64][lanes]. Positions from `first` to before `stop` are seen; others up to the next multiples of
    8 are overwritten.
    """
    width = min(max(_WIDE, lanes), N_PARTS * lanes)
    offsets = range(0, N_PARTS * lanes, width)
    begin, end = first // N_PARTS * N_PARTS, (stop + (N_PARTS - 1)) // N_PARTS * N_PARTS
    for unseen in ((begin, first), (stop, end)):
        with k.loop(*unseen) as j:
            k.store(weights + j * lanes, k.const(vec(f32, lanes), float("-inf")))
    maxima = [k.var(k.const(vec(f32, width), LOWEST)) for _ in offsets]
    with k.loop(begin, end, N_PARTS) as j:
        for each, offset in zip(maxima, offsets, strict=True):
            each.set(k.maximum(k.load(weights + (j * lanes + offset), width), each.get()))
    m = fold_halves(k, [each.get() for each in maxima], lanes, k.maximum)
    shift = k.shuffle(m, [*range(lanes)] * (width // lanes)) if width > lanes else m
    sums = [k.var(k.const(vec(f32, width), 0.0)) for _ in offsets]
    with k.loop(begin, end, N_PARTS) as j:
        for each, offset in zip(sums, offsets, strict=True):
            at = weights + (j * lanes + offset)
            p = k.exp(k.load(at, width) - shift)
            k.store(at, p)
            each.set(each.get() + p)
    return m, fold_halves(k, [each.get() for each in sums], lanes, lambda a, b: a + b)


def fold_halves(k: Kernel, vectors: Sequence[Value], lanes: int, join: Callable[[Value, Value], Value]) -> Value:
    """Joins the first half of all lanes with the second one, until `lanes` of them are left."""
    left = list(vectors)
    while len(left) > 1:
        half = len(left) // 2
        left = [join(a, b) for a, b in zip(left[:half], left[half:], strict=True)]
    (x,) = left
    while x.lanes > lanes:
        half = x.lanes // 2
        x = join(k.lanes(x, 0, half), k.lanes(x, half, x.lanes))
    return x


@dataclass(frozen=True)
class Factors:
    """How a partial result joins a state. Where a lane saw nothing of the page, or nothing but scores of -inf, its l is
    0, and its state stays as it is."""

    largest: Value
    alpha: Value
    beta: Value
    total: Value

    @classmethod
    def between(cls, k: Kernel, before: Value, largest: Value, total: Value) -> Factors:
        """Of M, m and l."""
        after = k.maximum(before, largest)
        return cls(after, k.exp(before - after), k.exp(largest - after), total)

    def of_lane(self, k: Kernel, lane: int, lanes: int) -> Factors:
        """Those of one lane, for all lanes of a vector."""
        ours = (self.largest, self.alpha, self.beta, self.total)
        return Factors(*(k.splat(k.extract(each, lane), lanes) for each in ours))

    def fold(self, k: Kernel, state: Value, partial: Value) -> Value:
        # Where nothing was seen, alpha is 1, and adding -0 changes no bit. NaN differs from 0: it gets through.
        added = k.select(self.total.ne(0.0), partial * self.beta, -0.0)
        return k.fma(state, self.alpha, added)
