"""Softcap: limit * tanh(x / limit), element by element over rows f32 [n, width].

Argument block: 0 x, 1 y, which may be the same memory. Within 8 units roundoff (`activate.py`). Bound by exp.
Source: Gemma 2 (2024).
"""

from __future__ import annotations

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission, rows_of
from minfer.backends.cpu.ops.activate import softcap
from minfer.graph import Node
from minfer.graph.ops import Softcap
from minfer.simd import KernelIR, f32

ROWS_PER_CHUNK = 4
_LANES = 16


def trace_softcap(limit: float, width: int, rows: StepWord) -> KernelIR:
    """The kernel for rows of `width` values."""
    k, args, step, chunk = tape_kernel("softcap")
    x, y = (argument_pointer(k, args, i, f32) for i in range(2))
    first = chunk * ROWS_PER_CHUNK * width
    last = k.minimum((chunk + 1) * ROWS_PER_CHUNK, step_count(k, step, rows)) * width
    with k.loop(first, last, _LANES) as i:
        mask = k.first_lanes(last - i, _LANES)
        k.store(y + i, softcap(k, k.load(x + i, _LANES, mask=mask), limit), mask=mask)
    return k.finish()


def _emit(e: Emission, node: Node, op: Softcap) -> None:
    spec = e.spec(node.outputs[0])
    kernel = e.tape.kernel(trace_softcap, op.limit, spec.n_static_values(), rows_of(spec))
    arguments = (e.address(node.inputs[0]), e.address(node.outputs[0]))
    e.tape.add(kernel, arguments, rows=rows_of(spec), rows_per_chunk=ROWS_PER_CHUNK)


OPS = (CpuOp(Softcap, _emit),)
