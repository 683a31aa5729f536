"""From an attention node to entries: one path for a few tokens, one for some, one for many."""

from __future__ import annotations

from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.emission import CpuOp, Emission
from minfer.backends.cpu.ops.attention import kernels
from minfer.backends.cpu.ops.attention.kernels import AttentionShape
from minfer.graph import Node, Symbol
from minfer.graph.ops import Attention


def _emit(e: Emission, node: Node, op: Attention) -> None:
    q, k_region, v_region, _, _ = node.inputs
    _, n_heads, head_dim = e.spec(q).shape
    _, n_kv_heads, value_dim = e.spec(v_region).shape
    shape = AttentionShape(
        n_heads=int(n_heads),
        n_kv_heads=int(n_kv_heads),
        head_dim=int(head_dim),
        value_dim=int(value_dim),
        k_type=e.spec(k_region).ggml_type,
        v_type=e.spec(v_region).ggml_type,
        scale=op.scale,
        window=op.window,
        vector_bytes=e.vector_bytes,
        softcap=op.softcap,
    )
    max_pages = e.bounds[Symbol.N_PAGES]
    partials, _ = e.shared("attention partials", shape.partials_bytes(max_pages))
    arguments = (
        e.address(q),
        e.region(k_region),
        e.region(v_region),
        e.address(node.outputs[0]),
        partials.ctypes.data,
        max_pages,
    )
    few, some = kernels.MAX_SPLIT_ROWS, kernels.MAX_TOKEN_ROWS
    n_heads_split = shape.n_kv_heads * kernels.N_SPLITS
    of_token, of_tile = shape.split_scratch_bytes, shape.tiles_scratch_bytes
    for trace, rows_per_chunk, n_parts, min_rows, max_rows, scratch_bytes in (
        (kernels.trace_attention_split, 1, n_heads_split, 1, few, of_token),
        (kernels.trace_attention_combine, 1, shape.n_kv_heads, 1, few, of_token),
        (kernels.trace_attention_tokens, 1, shape.n_kv_heads, few + 1, some, of_token),
        (kernels.trace_attention_tiles, kernels.TILE_TOKENS, shape.n_kv_heads, some + 1, 1 << 40, of_tile),
    ):
        e.tape.add(
            e.tape.kernel(trace, shape),
            arguments,
            rows=StepWord.N_TOKENS,
            rows_per_chunk=rows_per_chunk,
            n_parts=n_parts,
            min_rows=min_rows,
            max_rows=max_rows,
            scratch_bytes=scratch_bytes,
        )


OPS = (CpuOp(Attention, _emit),)
