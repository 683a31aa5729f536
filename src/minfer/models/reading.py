"""What most architectures read in the same way: from `Keys` to the parts of a `ModelConfig`.

All raise `ModelError` for numbers that can't belong together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minfer.errors import ModelError
from minfer.graph.ops import ActivationKind, RopeStyle
from minfer.models.config import Attention, Dense, FeedForward, LayerConfig, Mixer, ModelConfig, Norm
from minfer.models.keys import Keys
from minfer.models.rope_scaling import read_rope


def read_norm(keys: Keys) -> Norm:
    """RMSNorm with the file's epsilon."""
    name = "attention.layer_norm_rms_epsilon"
    eps = keys.number(name)
    if not 0 <= eps < 1:
        raise ModelError(f"{keys.full_name(name)} is {eps}, and must be at least 0 and less than 1")
    return Norm(eps)


def read_attention(keys: Keys, style: RopeStyle, *, qk_norm: Norm | None = None) -> tuple[Attention, ...]:
    """Each layer's attention: scaled by 1 / sqrt(head_dim), rotated, and with a window where the file has one."""
    all_heads = keys.integers("attention.head_count")
    window = keys.integer("attention.sliding_window", 0, at_least=0) or None
    layers = []
    for n_heads, n_kv in zip(all_heads, keys.integers("attention.head_count_kv", all_heads), strict=True):
        if n_heads % n_kv:
            key = keys.full_name("attention.head_count_kv")
            raise ModelError(f"{n_heads} query heads can't share {n_kv} KV heads evenly ({key})")
        head_dim = _head_width(keys, "attention.key_length", n_heads)
        attention = Attention(
            n_heads=n_heads,
            n_kv_heads=n_kv,
            head_dim=head_dim,
            value_dim=_head_width(keys, "attention.value_length", n_heads),
            scale=1.0 / math.sqrt(head_dim),
            rope=read_rope(keys, style, head_dim),
            window=window,
            qk_norm=qk_norm,
        )
        layers.append(attention)
    return tuple(layers)


def read_dense(keys: Keys, activation: ActivationKind = ActivationKind.SILU) -> tuple[Dense, ...]:
    """Each layer's gated feed-forward."""
    return tuple(Dense(n_ff, activation) for n_ff in keys.integers("feed_forward_length"))


def read_model(keys: Keys, norm: Norm, mixers: Sequence[Mixer], feed_forwards: Sequence[FeedForward]) -> ModelConfig:
    """The whole model, of one mixer and one feed-forward a layer, with the same norm everywhere."""
    layers = (LayerConfig(mixer, feed_forward, norm) for mixer, feed_forward in zip(mixers, feed_forwards, strict=True))
    n_embd = keys.integer("embedding_length")
    return ModelConfig(
        architecture=keys.architecture,
        n_vocab=_n_vocab(keys, n_embd),
        n_embd=n_embd,
        n_ctx_train=keys.integer("context_length"),
        layers=tuple(layers),
        output_norm=norm,
    )


def _head_width(keys: Keys, name: str, n_heads: int) -> int:
    """The key's value; without it, the heads divide the hidden state among them."""
    width, n_embd = keys.integer(name, None), keys.integer("embedding_length")
    if width is not None:
        return width
    if n_embd % n_heads:
        raise ModelError(f"embedding_length {n_embd} is not divisible by {n_heads} heads, and there is no {name}")
    return n_embd // n_heads


def _n_vocab(keys: Keys, n_embd: int) -> int:
    shape = keys.tensor_shape("token_embd.weight") or ()
    if len(shape) != 2 or shape[1] != n_embd:
        raise ModelError(f"token_embd.weight is {list(shape)}, and should be [n_vocab, {n_embd}]")
    return shape[0]
