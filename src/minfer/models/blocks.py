"""The parts that dense decoders are made of. Each declares nodes; none computes."""

from __future__ import annotations

import math

from minfer.errors import UnsupportedError
from minfer.graph import Graph, Value
from minfer.graph.ops import ActivationKind, Rope, RopeStyle
from minfer.models.declaration import Declaration
from minfer.models.rope_scaling import make_rope
from minfer.quants import block_geometry

OUTPUT = "output"


def dense_decoder(model: Declaration, rope_style: RopeStyle, *, qk_norm: bool = False) -> Graph:
    """A pre-norm decoder: embedding, layers of attention and a SwiGLU feed-forward, norm, logits.

    The hidden state after layer i is named `blk.i.hidden`.
    """
    builder, hparams = model.builder, model.hparams
    rope = make_rope(hparams.rope, rope_style, model.rope_divisors())
    table = model.weight("token_embd.weight", hparams.n_vocab, hparams.n_embd)
    hidden = builder.embedding(builder.input("tokens"), table, "embedding")
    for layer in range(hparams.n_layers):
        with builder.layer(layer):
            prefix = f"blk.{layer}"
            attended = attention(model, model.norm(hidden, f"{prefix}.attn_norm", hparams.n_embd), layer, rope, qk_norm)
            middle = builder.add(hidden, attended, f"{prefix}.attn_residual")
            fed = feed_forward(model, model.norm(middle, f"{prefix}.ffn_norm", hparams.n_embd), layer)
            hidden = builder.add(middle, fed, f"{prefix}.hidden")
    rows = builder.select_rows(hidden, builder.input("output_rows"), "wanted")
    return model.finish(logits(model, model.norm(rows, "output_norm", hparams.n_embd), table))


def attention(model: Declaration, x: Value, layer: int, rope: Rope, qk_norm: bool) -> Value:
    """Projections, optional norms of queries and keys, RoPE, the store, attention, output projection."""
    builder, hparams = model.builder, model.hparams
    prefix = f"blk.{layer}"
    q = model.linear(x, f"{prefix}.attn_q", hparams.n_heads * hparams.head_dim)
    k = model.linear(x, f"{prefix}.attn_k", hparams.n_kv_heads * hparams.head_dim)
    v = model.linear(x, f"{prefix}.attn_v", hparams.n_kv_heads * hparams.value_dim)
    q = builder.split_heads(q, hparams.n_heads, f"{prefix}.q")
    k = builder.split_heads(k, hparams.n_kv_heads, f"{prefix}.k")
    v = builder.split_heads(v, hparams.n_kv_heads, f"{prefix}.v")
    if qk_norm:
        q = model.norm(q, f"{prefix}.attn_q_norm", hparams.head_dim)
        k = model.norm(k, f"{prefix}.attn_k_norm", hparams.head_dim)
    q = builder.rope(q, builder.input("positions"), rope, f"{prefix}.q_rope")
    k = builder.rope(k, builder.input("positions"), rope, f"{prefix}.k_rope")
    k_region, v_region = kv_regions(model, layer)
    builder.kv_store(k, v, builder.input("cells"), k_region, v_region, f"{prefix}.kv_store")
    scale = 1.0 / math.sqrt(hparams.head_dim)
    heads = builder.attention(q, k_region, v_region, scale=scale, window=hparams.window, name=f"{prefix}.heads")
    return model.linear(builder.merge_heads(heads, f"{prefix}.attention"), f"{prefix}.attn_output", hparams.n_embd)


def kv_regions(model: Declaration, layer: int) -> tuple[Value, Value]:
    """The layer's two persistent regions.

    Raises:
        UnsupportedError: a head's width is no whole number of the cache type's blocks.
    """
    hparams, types = model.hparams, model.kv_types
    for what, width, ggml_type in (("keys", hparams.head_dim, types.k), ("values", hparams.value_dim, types.v)):
        block = block_geometry(ggml_type).n_values
        if width % block:
            raise UnsupportedError(
                f"cache type {ggml_type.name.lower()} for {what} of width {width}",
                hint=f"It stores {block} values together; use a float cache type",
            )
    k = model.builder.kv_region(f"blk.{layer}.k_cache", hparams.n_kv_heads, hparams.head_dim, types.k)
    v = model.builder.kv_region(f"blk.{layer}.v_cache", hparams.n_kv_heads, hparams.value_dim, types.v)
    return k, v


def feed_forward(model: Declaration, x: Value, layer: int) -> Value:
    """SwiGLU: down(silu(gate x) * (up x))."""
    builder, hparams = model.builder, model.hparams
    prefix = f"blk.{layer}"
    gate = model.linear(x, f"{prefix}.ffn_gate", hparams.n_ff)
    up = model.linear(x, f"{prefix}.ffn_up", hparams.n_ff)
    activated = builder.activation(gate, ActivationKind.SILU, f"{prefix}.ffn_activation")
    return model.linear(builder.multiply(activated, up, f"{prefix}.ffn_gated"), f"{prefix}.ffn_down", hparams.n_embd)


def logits(model: Declaration, x: Value, table: Value) -> Value:
    """The output projection; the embedding's table where the file has no projection of its own (tied embeddings)."""
    if model.has(f"{OUTPUT}.weight"):
        return model.linear(x, OUTPUT, model.hparams.n_vocab)
    return model.builder.matmul(x, table, None, OUTPUT)
