"""Add, Multiply, Activation and GatedActivation, element by element over rows f32 [n, width].

Argument block: 0 a, 1 b (two operands), 2 y, which may be the same memory as an operand. Add and Multiply round
once; the activations are those of `activate.py`: within 4 units in the last place. Bound by memory.
Source: Shazeer, GLU variants (2020); Hendrycks and Gimpel, Gaussian error linear units (2016).
"""

from __future__ import annotations

from enum import Enum

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission, rows_of
from minfer.backends.cpu.ops.activate import activate
from minfer.graph import Node
from minfer.graph.ops import Activation, ActivationKind, Add, GatedActivation, Multiply
from minfer.simd import KernelIR, f32

ROWS_PER_CHUNK = 4
_LANES = 16


class Elementwise(Enum):
    """What is computed of a (and b)."""

    ADD = "add"
    MULTIPLY = "multiply"
    ACTIVATION = "activation"
    GATED = "gated"

    @property
    def n_operands(self) -> int:
        return 1 if self is Elementwise.ACTIVATION else 2


def trace_elementwise(kind: Elementwise, activation: ActivationKind | None, width: int, rows: StepWord) -> KernelIR:
    """The kernel; `activation` is given for the two kinds that have one."""
    k, args, step, chunk = tape_kernel(f"elementwise_{kind.value}")
    a, b, y = (argument_pointer(k, args, i, f32) for i in range(3))
    first = chunk * ROWS_PER_CHUNK * width
    last = k.minimum((chunk + 1) * ROWS_PER_CHUNK, step_count(k, step, rows)) * width
    with k.loop(first, last, _LANES) as i:
        mask = k.first_lanes(last - i, _LANES)
        value = k.load(a + i, _LANES, mask=mask)
        if activation is not None:
            value = activate(k, activation, value)
        if kind.n_operands == 2:
            other = k.load(b + i, _LANES, mask=mask)
            value = value + other if kind is Elementwise.ADD else value * other
        k.store(y + i, value, mask=mask)
    return k.finish()


def _emit(e: Emission, node: Node, kind: Elementwise, activation: ActivationKind | None = None) -> None:
    spec = e.spec(node.outputs[0])
    rows = rows_of(spec)
    operands = [e.address(value_id) for value_id in node.inputs]
    arguments = (operands[0], operands[-1], e.address(node.outputs[0]))
    kernel = e.tape.kernel(trace_elementwise, kind, activation, spec.n_static_values(), rows)
    e.tape.add(kernel, arguments, rows=rows, rows_per_chunk=ROWS_PER_CHUNK)


def _emit_add(e: Emission, node: Node, op: Add) -> None:
    _emit(e, node, Elementwise.ADD)


def _emit_multiply(e: Emission, node: Node, op: Multiply) -> None:
    _emit(e, node, Elementwise.MULTIPLY)


def _emit_activation(e: Emission, node: Node, op: Activation) -> None:
    _emit(e, node, Elementwise.ACTIVATION, op.activation)


def _emit_gated(e: Emission, node: Node, op: GatedActivation) -> None:
    _emit(e, node, Elementwise.GATED, op.activation)


OPS = (
    CpuOp(Add, _emit_add),
    CpuOp(Multiply, _emit_multiply),
    CpuOp(Activation, _emit_activation),
    CpuOp(GatedActivation, _emit_gated),
)
