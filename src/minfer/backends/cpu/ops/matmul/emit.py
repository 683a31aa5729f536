"""From nodes with matrix products to entries."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cpu.emission import CpuOp, Emission, rows_of
from minfer.backends.cpu.ops.matmul.entries import Operands, add_matmul, add_matmul_float
from minfer.backends.cpu.ops.matmul.floats import FloatShape
from minfer.backends.cpu.ops.matmul.quantised import MatMulShape
from minfer.backends.cpu.ops.quantise import records_of
from minfer.backends.cpu.panels.floats import FLOAT_TYPES
from minfer.backends.cpu.panels.pack import panel_format
from minfer.graph import Node, TensorSpec, ValueId
from minfer.graph.ops import ActivationKind, GatedMatMul, MatMul, MatMulGroup, WeightRole


def _emit_matmul(e: Emission, node: Node, op: MatMul) -> None:
    bias = node.inputs[2] if op.has_bias else None
    _product(e, node.inputs[0], node.inputs[1], bias, node.outputs[0], barrier=True)


def _emit_group(e: Emission, node: Node, op: MatMulGroup) -> None:
    pairs = op.split_inputs(len(node.inputs))
    for position, ((w, b), output) in enumerate(zip(pairs, node.outputs, strict=True)):
        bias = None if b is None else node.inputs[b]
        is_last = position == len(pairs) - 1
        _product(e, node.inputs[0], node.inputs[w], bias, output, barrier=is_last)


def _emit_gated(e: Emission, node: Node, op: GatedMatMul) -> None:
    x, gate, up = node.inputs
    _product(e, x, gate, None, node.outputs[0], barrier=True, up=up, kind=op.activation)


def _product(
    e: Emission,
    x: ValueId,
    weight: ValueId,
    bias: ValueId | None,
    y: ValueId,
    *,
    barrier: bool,
    up: ValueId | None = None,
    kind: ActivationKind | None = None,
) -> None:
    spec = e.spec(weight)
    n_rows, n_columns = spec.resolve({})
    is_float = spec.ggml_type in FLOAT_TYPES
    operands = Operands(
        weights=(e.weight(weight, WeightRole.MATRIX), 0 if up is None else e.weight(up, WeightRole.MATRIX)),
        x=e.address(x) if is_float else records_of(e, x),
        y=e.address(y),
        bias=0 if bias is None else e.weight(bias, WeightRole.VECTOR),
        n_rows=n_rows,
    )
    rows, has_bias = rows_of(e.spec(y)), bias is not None
    if is_float:
        shape = FloatShape(spec.ggml_type, n_columns, rows, has_bias, kind)
        add_matmul_float(e.tape, shape, operands, n_threads=e.n_threads, barrier=barrier)
    else:
        panel = panel_format(spec.ggml_type)
        quantised = MatMulShape(panel, n_columns, rows, has_bias, kind)
        add_matmul(e.tape, quantised, operands, n_threads=e.n_threads, barrier=barrier)


def _reads_records(inputs: Sequence[TensorSpec]) -> bool:
    return inputs[1].ggml_type not in FLOAT_TYPES


def _refusal_of_gate(inputs: Sequence[TensorSpec]) -> str | None:
    _, gate, up = inputs
    if gate.ggml_type is not up.ggml_type:
        return f"gate and up differ in type: {gate.ggml_type.name} and {up.ggml_type.name}"
    return None


OPS = (
    CpuOp(MatMul, _emit_matmul, reads_records=_reads_records),
    CpuOp(MatMulGroup, _emit_group, reads_records=_reads_records),
    CpuOp(GatedMatMul, _emit_gated, _refusal_of_gate, _reads_records),
)
