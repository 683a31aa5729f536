"""KVStore: row t of k and v goes to cell cells[t] of the layer's two regions, in their type.

Argument block: 0 k f32 [n, n_kv_heads, head_dim], 1 v f32 [n, n_kv_heads, value_dim], 2 K region, 3 V region. One
token a chunk. Bound by memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_pointer, tape_kernel
from minfer.backends.cpu.kernels.kv_rows import cell_bytes, store_row
from minfer.quants import GGMLType, row_bytes
from minfer.simd import KernelIR, f32, i32, i64, u8


@dataclass(frozen=True)
class StoreShape:
    """What a kernel is traced for."""

    n_kv_heads: int
    head_dim: int
    value_dim: int
    k_type: GGMLType
    v_type: GGMLType


def trace_kv_store(shape: StoreShape) -> KernelIR:
    """The kernel for a shape."""
    k, args, step, token = tape_kernel("kv_store")
    cell = k.load(step_pointer(k, step, StepWord.CELLS, i32) + token).to(i64)
    for index, width, ggml_type in ((0, shape.head_dim, shape.k_type), (1, shape.value_dim, shape.v_type)):
        rows = argument_pointer(k, args, index, f32)
        region = argument_pointer(k, args, 2 + index, u8)
        to = region.offset_bytes(cell * cell_bytes(shape.n_kv_heads, width, ggml_type))
        with k.loop(0, shape.n_kv_heads) as head:
            row = rows + (token * shape.n_kv_heads + head) * width
            store_row(k, row, to.offset_bytes(head * row_bytes(ggml_type, width)), width, ggml_type)
    return k.finish()
