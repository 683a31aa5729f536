"""Rope of queries and of keys and the KVStore of what comes out, in one entry: at decode, two barriers less a layer.

The arithmetic is that of `rope.py` and `kv_store.py`, and so are the bits.

Argument block: 0 q f32 [n, n_heads, head_dim], 1 turned q (may be q), 2 k f32 [n, n_kv_heads, head_dim], 3 turned k
(may be k), 4 v f32 [n, n_kv_heads, value_dim], 5 cos, 6 sin, 7 K region, 8 V region. `ROWS_PER_CHUNK` tokens a chunk.
Bound by memory. Source: as those of `rope.py` and `kv_store.py`.
"""

from __future__ import annotations

from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.kernels.kv_store import StoreShape, store_token
from minfer.backends.cpu.kernels.rope import RopeShape, rotate_token
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
