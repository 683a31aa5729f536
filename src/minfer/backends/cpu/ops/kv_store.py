"""KVStore: row t of k and v goes to cell cells[t] of the layer's two regions, in their type.

Argument block: 0 k f32 [n, n_kv_heads, head_dim], 1 v f32 [n, n_kv_heads, value_dim], 2 K region, 3 V region. One
token a chunk. Bound by memory. Source: pages as in Kwon et al., PagedAttention (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_pointer, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission, width_of
from minfer.backends.cpu.ops.kv_rows import cell_bytes, store_row
from minfer.graph import Node
from minfer.graph.ops import KVStore
from minfer.quants import GGMLType, row_bytes
from minfer.simd import Kernel, KernelIR, Value, f32, i32, i64, u8


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
    rows = [argument_pointer(k, args, i, f32) for i in range(2)]
    regions = [argument_pointer(k, args, 2 + i, u8) for i in range(2)]
    store_token(k, shape, step, token, rows, regions)
    return k.finish()


def store_token(
    k: Kernel, shape: StoreShape, step: Value, token: Value, rows: Sequence[Value], regions: Sequence[Value]
) -> None:
    """Traces the store of one token: `rows` and `regions` are of keys and values, and point to the first of each."""
    cell = k.load(step_pointer(k, step, StepWord.CELLS, i32) + token).to(i64)
    of_keys, of_values = (shape.head_dim, shape.k_type), (shape.value_dim, shape.v_type)
    for first, region, (width, ggml_type) in zip(rows, regions, (of_keys, of_values), strict=True):
        to = region.offset_bytes(cell * cell_bytes(shape.n_kv_heads, width, ggml_type))
        with k.loop(0, shape.n_kv_heads) as head:
            row = first + (token * shape.n_kv_heads + head) * width
            store_row(k, row, to.offset_bytes(head * row_bytes(ggml_type, width)), width, ggml_type)


def _emit(e: Emission, node: Node, op: KVStore) -> None:
    k, v, _, *regions = node.inputs
    arguments = (e.address(k), e.address(v), *(e.region(value_id) for value_id in regions))
    kernel = e.tape.kernel(trace_kv_store, store_shape(e, node))
    e.tape.add(kernel, arguments, rows=StepWord.N_TOKENS, rows_per_chunk=1)


def store_shape(e: Emission, node: Node) -> StoreShape:
    """The shape of a node's kernel."""
    k, v, _, k_region, v_region = node.inputs
    _, n_kv_heads, head_dim = e.spec(k).shape
    types = (e.spec(k_region).ggml_type, e.spec(v_region).ggml_type)
    return StoreShape(int(n_kv_heads), int(head_dim), width_of(e.spec(v)), *types)


OPS = (CpuOp(KVStore, _emit),)
