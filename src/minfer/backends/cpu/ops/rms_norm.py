"""RMSNorm and AddRMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, over rows of `width` values.

Argument block: 0 x f32 [n, n_groups * width], 1 second addend (AddRMSNorm), 2 weight f32 [width], 3 sum out
(AddRMSNorm; may be the same memory as either addend), 4 y f32 (may be the same as x), 5 records of y (with
`quantised`).

Numerics: the sum of squares is in float64, in 16 lanes that are added by a fixed tree: exact products, and an error
below width * 2^-53. The scale is rounded to float32 once, and y has two more roundings: at most 1.5 units in the
last place each, where the scale is a normal float32 (root mean squares from 1e-38, with eps 0, to 8e37). Bound by
widening to float64: three accumulators more change nothing. Source: Zhang and Sennrich (2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.activations import QuantisedRow
from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission, rows_of, width_of
from minfer.backends.cpu.ops.quantise import quantise_row
from minfer.graph import Node
from minfer.graph.ops import AddRMSNorm, RMSNorm, WeightRole
from minfer.simd import Kernel, KernelIR, Value, f32, f64, u8, vec

ROWS_PER_CHUNK = 4
_LANES = 16


@dataclass(frozen=True)
class NormShape:
    """What a kernel is traced for: `n_groups` rows of `width` values stand in each row of the step."""

    width: int
    eps: float
    rows: StepWord
    n_groups: int = 1
    adds: bool = False
    quantised: bool = False


def trace_rms_norm(shape: NormShape) -> KernelIR:
    """The kernel for a shape."""
    k, args, step, chunk = tape_kernel("rms_norm")
    x = argument_pointer(k, args, 0, f32)
    addend = argument_pointer(k, args, 1, f32) if shape.adds else None
    weight = argument_pointer(k, args, 2, f32)
    total = argument_pointer(k, args, 3, f32) if shape.adds else None
    y = argument_pointer(k, args, 4, f32)
    first = chunk * ROWS_PER_CHUNK
    last = k.minimum(first + ROWS_PER_CHUNK, step_count(k, step, shape.rows))
    with k.loop(first * shape.n_groups, last * shape.n_groups) as row:
        at = row * shape.width
        if addend is not None and total is not None:
            _norm_row(k, shape, x + at, addend + at, weight, total + at, y + at)
        else:
            _norm_row(k, shape, x + at, None, weight, None, y + at)
        if shape.quantised:
            layout = QuantisedRow(shape.width)
            records = argument_pointer(k, args, 5, u8)
            quantise_row(k, y + at, records.offset_bytes(row * layout.stride_bytes), layout)
    return k.finish()


def _norm_row(
    k: Kernel, shape: NormShape, x: Value, addend: Value | None, weight: Value, total: Value | None, y: Value
) -> None:
    squares = k.var(k.const(vec(f64, _LANES), 0.0))
    for start, stop, masked in _pieces(shape.width):
        mask = k.first_lanes(shape.width - start, _LANES) if masked else None
        with k.loop(start, stop, _LANES) as i:
            value = k.load(x + i, _LANES, mask=mask)
            if addend is not None and total is not None:
                value = value + k.load(addend + i, _LANES, mask=mask)
                k.store(total + i, value, mask=mask)
            wide = value.to(f64)
            squares.set(squares.get() + wide * wide)
    mean = k.reduce_sum(squares.get()) / float(shape.width)
    scale = k.splat((1.0 / k.sqrt(mean + shape.eps)).to(f32), _LANES)
    source = x if total is None else total
    for start, stop, masked in _pieces(shape.width):
        mask = k.first_lanes(shape.width - start, _LANES) if masked else None
        with k.loop(start, stop, _LANES) as i:
            scaled = k.load(source + i, _LANES, mask=mask) * scale
            k.store(y + i, scaled * k.load(weight + i, _LANES, mask=mask), mask=mask)


def _pieces(width: int) -> list[tuple[int, int, bool]]:
    """(start, stop, whether it is a part of a vector) of the whole vectors of a row, and of its rest."""
    whole = width // _LANES * _LANES
    return [piece for piece in ((0, whole, False), (whole, width, True)) if piece[0] < piece[1]]


def _emit(e: Emission, node: Node, op: RMSNorm | AddRMSNorm) -> None:
    adds = isinstance(op, AddRMSNorm)
    *operands, weight = node.inputs
    y = node.outputs[-1]
    spec = e.spec(y)
    width = width_of(spec)
    shape = NormShape(
        width=width,
        eps=op.eps,
        rows=rows_of(spec),
        n_groups=spec.n_static_values() // width,
        adds=adds,
        quantised=e.wants_record(y),
    )
    arguments = (
        e.address(operands[0]),
        e.address(operands[1]) if adds else 0,
        e.weight(weight, WeightRole.VECTOR),
        e.address(node.outputs[0]) if adds else 0,
        e.address(y),
        e.record_buffer(width) if shape.quantised else 0,
    )
    e.tape.add(e.tape.kernel(trace_rms_norm, shape), arguments, rows=shape.rows, rows_per_chunk=ROWS_PER_CHUNK)
    if shape.quantised:
        e.set_recorded(y)


OPS = (CpuOp(RMSNorm, _emit), CpuOp(AddRMSNorm, _emit))
