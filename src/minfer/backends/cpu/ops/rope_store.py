"""Rope of queries and of keys and the KVStore of what comes out, in one entry: at decode, two barriers less a layer.

The arithmetic is that of `rope.py` and `kv_store.py`, and so are the bits.

Argument block: 0 q f32 [n, n_heads, head_dim], 1 turned q (may be q), 2 k f32 [n, n_kv_heads, head_dim], 3 turned k
(may be k), 4 v f32 [n, n_kv_heads, value_dim], 5 cos, 6 sin, 7 K region, 8 V region. `ROWS_PER_CHUNK` tokens a chunk.
Bound by memory. Source: as those of `rope.py` and `kv_store.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.emission import CpuGroup, Emission, Prepare
from minfer.backends.cpu.ops.kv_store import StoreShape, store_shape, store_token
from minfer.backends.cpu.ops.rope import RopeShape, rope_shape, rope_tables, rotate_token
from minfer.graph import Node
from minfer.graph.ops import KVStore, Rope
from minfer.simd import KernelIR, f32, u8

ROWS_PER_CHUNK = 4


def trace_rope_store(of_queries: RopeShape, of_keys: RopeShape, store: StoreShape) -> KernelIR:
    """The kernel for shapes that fit together: both turn by the same tables, and the keys are those that are stored."""
    k, args, step, chunk = tape_kernel("rope_store")
    q, turned_q, keys, turned_keys, values, cos, sin = (argument_pointer(k, args, i, f32) for i in range(7))
    regions = [argument_pointer(k, args, 7 + i, u8) for i in range(2)]
    first = chunk * ROWS_PER_CHUNK
    with k.loop(first, k.minimum(first + ROWS_PER_CHUNK, step_count(k, step, StepWord.N_TOKENS))) as token:
        rotate_token(k, of_queries, token, q, turned_q, cos, sin)
        rotate_token(k, of_keys, token, keys, turned_keys, cos, sin)
        store_token(k, store, step, token, (turned_keys, values), regions)
    return k.finish()


def _fits(e: Emission, nodes: Sequence[Node]) -> bool:
    """Whether queries and keys are turned by one table, in place, and those keys are stored: then no chunk reads what
    another writes, and one entry does."""
    of_q, of_k, store = nodes
    in_place = all(e.graph.storage(n.inputs[0]) == e.graph.storage(n.outputs[0]) for n in (of_q, of_k))
    return in_place and of_q.op == of_k.op and store.inputs[0] == of_k.outputs[0]


def _emit(e: Emission, nodes: Sequence[Node]) -> Prepare | None:
    of_q, of_k, store = nodes
    op = of_q.op
    assert isinstance(op, Rope)
    prepare, tables = rope_tables(e, op)
    shapes = (rope_shape(e, of_q, op), rope_shape(e, of_k, op), store_shape(e, store))
    _, v, _, *regions = store.inputs
    arguments = (
        *(e.address(i) for node in (of_q, of_k) for i in (node.inputs[0], node.outputs[0])),
        e.address(v),
        *tables,
        *(e.region(value_id) for value_id in regions),
    )
    kernel = e.tape.kernel(trace_rope_store, *shapes)
    e.tape.add(kernel, arguments, rows=StepWord.N_TOKENS, rows_per_chunk=ROWS_PER_CHUNK)
    return prepare


GROUPS = (CpuGroup((Rope, Rope, KVStore), _fits, _emit),)
