"""Embedding: y[t] = row tokens[t] of the table, as float32.

The table lies in panels of 16 rows, as for the matmuls (`panels/`): where a model uses it for its
output projection too, it is there once. A row is one lane of its panel. 32 columns of all 16 rows are unpacked into
registers, as the matmul does, and put into scratch memory, from where the lane's 32 values are read.

Argument block: 0 panels, 1 y f32 [n, width]. A chunk is a token. Scratch: `SCRATCH_BYTES`. y must not overlap the
table.

Numerics: scale * (u - zero), then + offset, each rounded once: the bits of `quants.dequantise`. Bound by reading the
panel from memory, and for many tokens by the unpacking: some 100 cycles for 32 columns. Source: the layout is that of
`panels/`.
"""

from __future__ import annotations

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_pointer, tape_kernel, thread_scratch
from minfer.backends.cpu.emission import CpuOp, Emission, width_of
from minfer.backends.cpu.ops.matmul.floats import FloatShape
from minfer.backends.cpu.panels.floats import FLOAT_TYPES
from minfer.backends.cpu.panels.formats import BLOCK, GROUPS_OF_FOUR, PANEL_ROWS, VECTOR_BYTES, PanelFormat
from minfer.backends.cpu.panels.pack import panel_format
from minfer.graph import Node
from minfer.graph.ops import Embedding, WeightRole
from minfer.simd import Kernel, KernelIR, Value, f32, i32, i64, u8

_HALF = BLOCK // 2
_NUMBERS_AT = VECTOR_BYTES * GROUPS_OF_FOUR
_LANE_AT = _NUMBERS_AT + 4 * 64
SCRATCH_BYTES = _LANE_AT + BLOCK
"""8 vectors of integers, up to two of scales and two of offsets, and the integers of a lane."""


def trace_embedding(panel: PanelFormat, width: int) -> KernelIR:
    """The kernel for a quantised table with rows of `width` values."""
    k, args, step, chunk = tape_kernel(f"embedding_{panel.name}_w{width}")
    row = _token(k, step, chunk)
    start = argument_pointer(k, args, 0, u8).offset_bytes(row // PANEL_ROWS * panel.panel_bytes(width))
    y = argument_pointer(k, args, 1, f32) + chunk * width
    lane = row % PANEL_ROWS
    with k.loop(0, width // panel.unit_columns) as unit:
        at = start.offset_bytes(unit * panel.unit_bytes)
        header = panel.emit_header(k, at)
        with k.loop(0, panel.n_blocks) as i:
            block = at.offset_bytes(i * panel.block_bytes + panel.header_bytes)
            _unpack_lane(k, panel, block, header, lane, y + (unit * panel.n_blocks + i) * BLOCK)
    return k.finish()


def _unpack_lane(k: Kernel, panel: PanelFormat, block: Value, header: tuple[Value, ...], lane: Value, y: Value) -> None:
    """32 columns of one row."""
    registers, scratch = panel.emit_block(k, block, header), thread_scratch(k)
    for g, quants in enumerate(registers.quants):
        k.store(scratch.offset_bytes(VECTOR_BYTES * g), quants, align=64)
    numbers = (*registers.scales, *registers.offsets)
    for n, number in enumerate(numbers):
        k.store(scratch.offset_bytes(_NUMBERS_AT + 64 * n).cast(f32), number, align=64)
    of_lane = scratch.offset_bytes(lane * 4)
    for g in range(GROUPS_OF_FOUR):
        four = k.load(of_lane.offset_bytes(VECTOR_BYTES * g).cast(i32))
        k.store(scratch.offset_bytes(_LANE_AT + 4 * g).cast(i32), four)
    for half in range(2):
        group = half if panel.n_groups == 2 else 0
        u = k.load(scratch.offset_bytes(_LANE_AT + _HALF * half), _HALF).to(i32)
        value = (u - panel.zero).to(f32) * _number(k, of_lane, group)
        if registers.offsets:
            value = value + _number(k, of_lane, panel.n_groups + group)
        k.store(y + _HALF * half, value)


def _number(k: Kernel, of_lane: Value, n: int) -> Value:
    return k.splat(k.load(of_lane.offset_bytes(_NUMBERS_AT + 64 * n).cast(f32)), _HALF)


def trace_embedding_float(shape: FloatShape) -> KernelIR:
    """The kernel for a table of floats: every 16th value of the panel."""
    k, args, step, chunk = tape_kernel(f"embedding_{shape.ggml_type.name.lower()}_w{shape.n_columns}")
    row = _token(k, step, chunk)
    panel = row // PANEL_ROWS * (PANEL_ROWS * shape.n_columns)
    start = argument_pointer(k, args, 0, shape.element) + panel + row % PANEL_ROWS
    y = argument_pointer(k, args, 1, f32) + chunk * shape.n_columns
    with k.loop(0, shape.n_columns) as i:
        value = k.load(start + i * PANEL_ROWS)
        k.store(y + i, value if shape.element is f32 else value.to(f32))
    return k.finish()


def _token(k: Kernel, step: Value, chunk: Value) -> Value:
    return k.load(step_pointer(k, step, StepWord.TOKENS, i32) + chunk).to(i64)


def _emit(e: Emission, node: Node, op: Embedding) -> None:
    table = node.inputs[1]
    ggml_type, width = e.spec(table).ggml_type, width_of(e.spec(table))
    if ggml_type in FLOAT_TYPES:
        kernel = e.tape.kernel(trace_embedding_float, FloatShape(ggml_type, width, StepWord.N_TOKENS))
    else:
        panel = panel_format(ggml_type)
        kernel = e.tape.kernel(trace_embedding, panel, width, key=f"{panel.name} {width}")
    arguments = (e.weight(table, WeightRole.MATRIX), e.address(node.outputs[0]))
    e.tape.add(kernel, arguments, rows=StepWord.N_TOKENS, rows_per_chunk=1, scratch_bytes=SCRATCH_BYTES)


OPS = (CpuOp(Embedding, _emit),)
