"""SelectRows: y[i] = x[output_rows[i]], rows of `width` f32.

Argument block: 0 x, 1 y, which must not overlap. One row a chunk. Bound by memory. Source: the definition in
`graph/ops/`.
"""

from __future__ import annotations

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_pointer, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission
from minfer.graph import Node
from minfer.graph.ops import SelectRows
from minfer.simd import KernelIR, f32, i32, i64

_LANES = 16


def trace_select_rows(width: int) -> KernelIR:
    """The kernel for rows of `width` values."""
    k, args, step, chunk = tape_kernel(f"select_rows_w{width}")
    x, y = argument_pointer(k, args, 0, f32), argument_pointer(k, args, 1, f32)
    row = k.load(step_pointer(k, step, StepWord.OUTPUT_ROWS, i32) + chunk).to(i64)
    with k.loop(0, width, _LANES) as i:
        mask = k.first_lanes(width - i, _LANES)
        k.store(y + chunk * width + i, k.load(x + row * width + i, _LANES, mask=mask), mask=mask)
    return k.finish()


def _emit(e: Emission, node: Node, op: SelectRows) -> None:
    width = e.spec(node.inputs[0]).n_static_values()
    arguments = (e.address(node.inputs[0]), e.address(node.outputs[0]))
    e.tape.add(e.tape.kernel(trace_select_rows, width), arguments, rows=StepWord.N_OUTPUTS, rows_per_chunk=1)


OPS = (CpuOp(SelectRows, _emit),)
