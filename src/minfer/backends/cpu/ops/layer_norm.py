"""LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias, over rows of `width` values.

Argument block: 0 x f32 [n, n_groups * width], 1 weight f32 [width], 2 bias f32 [width] (with `has_bias`), 3 y f32 (may
be the same as x).

Numerics: sums are in float64, in 16 lanes that are added by a fixed tree, first of x and then of (x - mean)^2: two
passes, since the mean of the squares less the square of the mean cancels. (x - mean) / sqrt(...) is rounded to
float32 once; the product with the weight and the bias round once, together or without a bias the product alone.
Bound by widening to float64. Source: Ba et al. (2016).
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission, rows_of, width_of
from minfer.graph import Node
from minfer.graph.ops import LayerNorm, WeightRole
from minfer.simd import Kernel, KernelIR, Value, f32, f64, vec

ROWS_PER_CHUNK = 4
_LANES = 16


@dataclass(frozen=True)
class LayerNormShape:
    """What a kernel is traced for: `n_groups` rows of `width` values stand in each row of the step."""

    width: int
    eps: float
    rows: StepWord
    n_groups: int = 1
    has_bias: bool = False


def trace_layer_norm(shape: LayerNormShape) -> KernelIR:
    """The kernel for a shape."""
    k, args, step, chunk = tape_kernel("layer_norm")
    x, weight, bias, y = (argument_pointer(k, args, i, f32) for i in range(4))
    first = chunk * ROWS_PER_CHUNK
    last = k.minimum(first + ROWS_PER_CHUNK, step_count(k, step, shape.rows))
    with k.loop(first * shape.n_groups, last * shape.n_groups) as row:
        at = row * shape.width
        _norm_row(k, shape, x + at, weight, bias if shape.has_bias else None, y + at)
    return k.finish()


def _norm_row(k: Kernel, shape: LayerNormShape, x: Value, weight: Value, bias: Value | None, y: Value) -> None:
    width, zero = shape.width, k.const(vec(f64, _LANES), 0.0)
    total, squares = k.var(zero), k.var(zero)
    with k.loop(0, width, _LANES) as i:
        value = k.load(x + i, _LANES, mask=k.first_lanes(width - i, _LANES)).to(f64)
        total.set(total.get() + value)
    mean = k.splat(k.reduce_sum(total.get()) / float(width), _LANES)
    with k.loop(0, width, _LANES) as i:
        mask = k.first_lanes(width - i, _LANES)
        centred = k.select(mask, k.load(x + i, _LANES, mask=mask).to(f64) - mean, 0.0)
        squares.set(squares.get() + centred * centred)
    variance = k.reduce_sum(squares.get()) / float(width)
    scale = k.splat(1.0 / k.sqrt(variance + shape.eps), _LANES)
    with k.loop(0, width, _LANES) as i:
        mask = k.first_lanes(width - i, _LANES)
        normed = ((k.load(x + i, _LANES, mask=mask).to(f64) - mean) * scale).to(f32)
        w = k.load(weight + i, _LANES, mask=mask)
        result = normed * w if bias is None else k.fma(normed, w, k.load(bias + i, _LANES, mask=mask))
        k.store(y + i, result, mask=mask)


def _emit(e: Emission, node: Node, op: LayerNorm) -> None:
    x, *vectors = node.inputs
    (y,) = node.outputs
    spec = e.spec(y)
    width = width_of(spec)
    shape = LayerNormShape(width, op.eps, rows_of(spec), spec.n_static_values() // width, op.has_bias)
    addresses = [e.weight(each, WeightRole.VECTOR) for each in vectors]
    arguments = (e.address(x), addresses[0], addresses[1] if op.has_bias else 0, e.address(y))
    e.tape.add(e.tape.kernel(trace_layer_norm, shape), arguments, rows=shape.rows, rows_per_chunk=ROWS_PER_CHUNK)


OPS = (CpuOp(LayerNorm, _emit),)
