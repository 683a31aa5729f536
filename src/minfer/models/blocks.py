"""The parts that decoders are made of, declared layer by layer from a `ModelConfig`. None computes."""

from __future__ import annotations

from minfer.errors import UnsupportedError
from minfer.graph import Graph, Value, ops
from minfer.models.config import Attention, Dense, LayerConfig, Wiring
from minfer.models.declaration import Declaration
from minfer.quants import block_geometry

OUTPUT = "output"


def decoder(model: Declaration) -> Graph:
    """The shared decoder: embedding, the layers as they are configured, a norm, logits.

    The hidden state after layer i is named `blk.i.hidden`.
    """
    builder, config = model.builder, model.config
    table = model.weight("token_embd.weight", config.n_vocab, config.n_embd)
    hidden = builder.embedding(builder.input("tokens"), table, "embedding")
    for index, layer in enumerate(config.layers):
        with builder.layer(index):
            hidden = decoder_layer(model, hidden, layer, f"blk.{index}")
    rows = builder.select_rows(hidden, builder.input("output_rows"), "wanted")
    return model.finish(logits(model, model.norm(rows, config.output_norm, "output_norm"), table))


def decoder_layer(model: Declaration, x: Value, layer: LayerConfig, prefix: str) -> Value:
    """One layer, whose tensors begin with `PREFIX.`."""
    builder = model.builder
    normed = model.norm(x, layer.norm, f"{prefix}.attn_norm")
    attended = attention(model, normed, layer.mixer, prefix)
    if layer.wiring is Wiring.NORMS_AROUND:
        attended = model.norm(attended, layer.norm, f"{prefix}.post_attention_norm")
    middle = builder.add(x, attended, f"{prefix}.attn_residual")
    if layer.wiring is not Wiring.PARALLEL:
        normed = model.norm(middle, layer.norm, f"{prefix}.ffn_norm")
    fed = feed_forward(model, normed, layer.feed_forward, prefix)
    if layer.wiring is Wiring.NORMS_AROUND:
        fed = model.norm(fed, layer.norm, f"{prefix}.post_ffw_norm")
    return builder.add(middle, fed, f"{prefix}.hidden")


def attention(model: Declaration, x: Value, config: Attention, prefix: str) -> Value:
    """Projections, norms and rotation of queries and keys, the store, attention, output projection."""
    builder = model.builder
    q = model.linear(x, f"{prefix}.attn_q", config.n_heads * config.head_dim)
    k = model.linear(x, f"{prefix}.attn_k", config.n_kv_heads * config.head_dim)
    v = model.linear(x, f"{prefix}.attn_v", config.n_kv_heads * config.value_dim)
    q = builder.split_heads(q, config.n_heads, f"{prefix}.q")
    k = builder.split_heads(k, config.n_kv_heads, f"{prefix}.k")
    v = builder.split_heads(v, config.n_kv_heads, f"{prefix}.v")
    if config.qk_norm is not None:
        q = model.norm(q, config.qk_norm, f"{prefix}.attn_q_norm")
        k = model.norm(k, config.qk_norm, f"{prefix}.attn_k_norm")
    if config.rope is not None:
        q = model.rope(q, config.rope, f"{prefix}.q_rope")
        k = model.rope(k, config.rope, f"{prefix}.k_rope")
    k_region, v_region = kv_regions(model, config, prefix)
    builder.kv_store(k, v, builder.input("cells"), k_region, v_region, f"{prefix}.kv_store")
    heads = builder.attention(
        q,
        k_region,
        v_region,
        scale=config.scale,
        window=config.window,
        softcap=config.softcap,
        name=f"{prefix}.heads",
    )
    merged = builder.merge_heads(heads, f"{prefix}.attention")
    return model.linear(merged, f"{prefix}.attn_output", model.config.n_embd)


def kv_regions(model: Declaration, config: Attention, prefix: str) -> tuple[Value, Value]:
    """A layer's two persistent regions.

    Raises:
        UnsupportedError: a head's width is no whole number of the cache type's blocks.
    """
    types = model.kv_types
    for what, width, ggml_type in (("keys", config.head_dim, types.k), ("values", config.value_dim, types.v)):
        block = block_geometry(ggml_type).n_values
        if width % block:
            raise UnsupportedError(
                f"cache type {ggml_type.name.lower()} for {what} of width {width}",
                hint=f"It stores {block} values together; use a float cache type",
            )
    k = model.builder.kv_region(f"{prefix}.k_cache", config.n_kv_heads, config.head_dim, types.k)
    v = model.builder.kv_region(f"{prefix}.v_cache", config.n_kv_heads, config.value_dim, types.v)
    return k, v


def feed_forward(model: Declaration, x: Value, config: Dense, prefix: str) -> Value:
    """down(activation(gate x) * (up x))."""
    builder = model.builder
    gate = model.linear(x, f"{prefix}.ffn_gate", config.n_ff)
    up = model.linear(x, f"{prefix}.ffn_up", config.n_ff)
    activated = builder.activation(gate, config.activation, f"{prefix}.ffn_activation")
    gated = builder.multiply(activated, up, f"{prefix}.ffn_gated")
    return model.linear(gated, f"{prefix}.ffn_down", model.config.n_embd)


def logits(model: Declaration, x: Value, table: Value) -> Value:
    """The output projection, by the embedding's table where the file has no projection of its own (tied embeddings),
    and the soft-cap of the logits."""
    if model.has(f"{OUTPUT}.weight"):
        result = model.linear(x, OUTPUT, model.config.n_vocab)
    else:
        result = model.builder.matmul(x, table, None, OUTPUT)
    if model.config.logit_softcap is None:
        return result
    return model.builder.apply(ops.Softcap(model.config.logit_softcap), [result], f"{OUTPUT}_softcap")
