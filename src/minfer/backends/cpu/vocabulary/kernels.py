"""The passes over the vocabulary: arg-max, the two passes of top-k, and the sum of exponentials.

They run outside the tape, on the thread that calls them, over one row of logits f32 [n] of any n >= 1 and any
alignment of floats. `n` is an argument: the kernels gain nothing from a constant one, and all models share them. No
output may overlap the logits. `ok` becomes 1 where every logit is below +inf, and 0 where one is NaN or +inf; -inf is
a banned token. The definitions are in `reference/vocabulary.py`.

Arg-max, group maxima and collect are bound by the caches: two or three operations for each vector loaded. The sum of
exponentials is bound by arithmetic: some 40 operations in float64 for each value. Source: the threshold from groups'
maxima is explained in `sampling/vocabulary.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from minfer.sampling import exponentials as spec
from minfer.simd import Kernel, KernelIR, Value, Var, f32, f64, i32, i64, ptr, vec

_LANES = 16
_VECTORS = 4
GROUPS_PER_BLOCK = _LANES * _VECTORS
"""Groups that group maxima makes of each block of logits."""
_TESTED_AT_ONCE = 128

_Look = Callable[[Value, list[Value] | None], None]


def trace_arg_max() -> KernelIR:
    """best[0] = the lowest index of the largest logit (any, where `ok` becomes 0).

    Each of 64 lanes keeps its first largest logit; then the largest of these, and of equals the lowest index.
    """
    k = Kernel("arg_max", logits=ptr(f32), n=i64, best=ptr(i64), ok=ptr(i64))
    logits, n, best, ok = k.args
    largest = [k.var(k.const(vec(f32, _LANES), -math.inf)) for _ in range(_VECTORS)]
    where = [k.var(k.const(vec(i32, _LANES), 0)) for _ in range(_VECTORS)]
    below_inf = k.var(k.const(vec(i32, _LANES), 0).eq(0))

    def look(i: Value, mask: list[Value] | None) -> None:
        for j in range(_VECTORS):
            x = _load(k, logits + i + j * _LANES, None if mask is None else mask[j])
            below_inf.set(below_inf.get() & (x < math.inf))
            better = x > largest[j].get()
            largest[j].set(k.select(better, x, largest[j].get()))
            where[j].set(k.select(better, k.splat(i.to(i32), _LANES), where[j].get()))

    _each_64(k, k.const(i64, 0), n, look)
    lane = k.const(vec(i32, _LANES), list(range(_LANES)))
    values = [each.get() for each in largest]
    indices = [where[j].get() + lane + j * _LANES for j in range(_VECTORS)]
    while len(values) > 1:
        a, b, at_a, at_b = values.pop(0), values.pop(0), indices.pop(0), indices.pop(0)
        takes_b = (b > a) | (b.eq(a) & (at_b < at_a))
        values.append(k.select(takes_b, b, a))
        indices.append(k.select(takes_b, at_b, at_a))
    is_largest = values[0].eq(k.splat(k.reduce_max(values[0]), _LANES))
    k.store(best, k.reduce_min(k.select(is_largest, indices[0], 2**31 - 1)).to(i64))
    _store_ok(k, ok, below_inf.get())
    return k.finish()


def trace_group_maxima() -> KernelIR:
    """maxima[g] = the largest logit of group g, for ceil(n / block) * 64 groups.

    Each run of `block` logits (a multiple of 64) is dealt into 64 groups. A group without a logit has -inf.
    """
    k = Kernel("group_maxima", logits=ptr(f32), n=i64, block=i64, maxima=ptr(f32), ok=ptr(i64))
    logits, n, block, maxima, ok = k.args
    below_inf = k.var(k.const(vec(i32, _LANES), 0).eq(0))
    group = k.var(k.const(i64, 0))
    with k.loop(0, n, block) as start:
        largest = [k.var(k.const(vec(f32, _LANES), -math.inf)) for _ in range(_VECTORS)]

        def look(i: Value, mask: list[Value] | None) -> None:
            for j in range(_VECTORS):
                x = _load(k, logits + i + j * _LANES, None if mask is None else mask[j])
                below_inf.set(below_inf.get() & (x < math.inf))
                largest[j].set(k.maximum(x, largest[j].get()))

        _each_64(k, start, k.minimum(start + block, n), look)
        for j in range(_VECTORS):
            k.store(maxima + group.get() + j * _LANES, largest[j].get())
        group.set(group.get() + GROUPS_PER_BLOCK)
    _store_ok(k, ok, below_inf.get())
    return k.finish()


def trace_collect() -> KernelIR:
    """ids[0 ... count[0] - 1] = the indices of all logits >= threshold, ascending. `ids` has room for n + 1.

    What reaches the threshold is expected to be rare: whole runs are passed by their maximum.
    """
    k = Kernel("collect", logits=ptr(f32), n=i64, threshold=f32, ids=ptr(i32), count=ptr(i64))
    logits, n, threshold, ids, count = k.args
    found = k.var(k.const(i64, 0))

    def look_closer(start: Value, stop: Value) -> None:
        with k.loop(start, stop) as i:
            # Without a branch: what does not reach it is overwritten by the next.
            k.store(ids + found.get(), i.to(i32))
            found.set(found.get() + k.select(k.load(logits + i) >= threshold, k.const(i64, 1), 0))

    whole = n & -_TESTED_AT_ONCE
    with k.loop(0, whole, _TESTED_AT_ONCE) as i:
        values = [k.load(logits + i + j, _LANES) for j in range(0, _TESTED_AT_ONCE, _LANES)]
        while len(values) > 1:
            values = [k.maximum(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        with k.if_(k.reduce_max(values[0]) >= threshold):
            look_closer(i, i + _TESTED_AT_ONCE)
    look_closer(whole, n)
    k.store(count, found.get())
    return k.finish()


def trace_exp_sum() -> KernelIR:
    """total[0] = sum of e**((logit - largest) * scale), in float64, bit for bit as in `sampling/exponentials.py`."""
    k = Kernel("exp_sum", logits=ptr(f32), n=i64, largest=f64, scale=f64, total=ptr(f64), ok=ptr(i64))
    logits, n, largest, scale, total, ok = k.args
    zeros = k.const(vec(f64, spec.LANES), 0.0)
    subtrahend, factor = k.splat(largest, spec.LANES), k.splat(scale, spec.LANES)
    below_inf = k.var(k.const(vec(i32, _LANES), 0).eq(0))
    sums = k.var(zeros)
    with k.loop(0, n, spec.BLOCK) as start:
        block_sums = k.var(zeros)
        stop = k.minimum(start + spec.BLOCK, n)
        whole = start + ((stop - start) & -spec.LANES)

        def add(i: Value, mask: Value | None, block_sums: Var = block_sums) -> None:
            x = _load(k, logits + i, mask)
            below_inf.set(below_inf.get() & (x < math.inf))
            block_sums.set(block_sums.get() + _exp_of_nonpositive(k, (x.to(f64) - subtrahend) * factor))

        with k.loop(start, whole, spec.LANES) as i:
            add(i, None)
        with k.if_(whole < stop):
            add(whole, k.first_lanes(stop - whole, spec.LANES))
        sums.set(sums.get() + block_sums.get())
    k.store(total, k.reduce_sum(sums.get()))
    _store_ok(k, ok, below_inf.get())
    return k.finish()


def _exp_of_nonpositive(k: Kernel, x: Value) -> Value:
    clamped = k.maximum(x, spec.LOWEST)
    shifted = clamped * spec.LOG2_E + spec.ROUNDER
    n = shifted - spec.ROUNDER
    r = (clamped - n * spec.LN2_HIGH) - n * spec.LN2_LOW
    power = r * spec.COEFFICIENTS[-1] + spec.COEFFICIENTS[-2]
    for coefficient in spec.COEFFICIENTS[-3::-1]:
        power = power * r + coefficient
    bits = shifted.bitcast(vec(i64, spec.LANES)) + (spec.EXPONENT_BIAS - spec.ROUNDER_BITS)
    scale = (bits << spec.MANTISSA_BITS).bitcast(vec(f64, spec.LANES))
    return k.select(x < spec.LOWEST, 0.0, power * scale)


def _each_64(k: Kernel, start: Value, stop: Value, look: _Look) -> None:
    """Calls `look` with every index of whole runs of 64, and with the rest and its masks."""
    whole = start + ((stop - start) & -GROUPS_PER_BLOCK)
    with k.loop(start, whole, GROUPS_PER_BLOCK) as i:
        look(i, None)
    with k.if_(whole < stop):
        look(whole, [k.first_lanes(stop - whole - j * _LANES, _LANES) for j in range(_VECTORS)])


def _load(k: Kernel, address: Value, mask: Value | None) -> Value:
    """16 logits; -inf where the mask is false."""
    x = k.load(address, _LANES, mask=mask)
    return x if mask is None else k.select(mask, x, -math.inf)


def _store_ok(k: Kernel, ok: Value, below_inf: Value) -> None:
    k.store(ok, k.reduce_min(k.select(below_inf, k.const(vec(i32, _LANES), 1), 0)).to(i64))
