"""A plain float64 forward pass of the tiny models: the obvious way, one head and one position at a time.

It shares nothing with minfer, and every step is written from its published definition, so that it can say what the
engine's logits have to be. Scores and sums run over exactly the positions that a token may see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tiny_models import RopeScalingKind, TinySpec

Array = NDArray[np.float64]


class RopeStyle(Enum):
    """Which dimensions of a head make a pair: 2i and 2i + 1, or i and i + n_rot / 2."""

    INTERLEAVED = "interleaved"
    NON_INTERLEAVED = "non_interleaved"


ROPE_STYLES: Mapping[str, RopeStyle] = {
    "llama": RopeStyle.INTERLEAVED,
    "qwen2": RopeStyle.NON_INTERLEAVED,
    "qwen3": RopeStyle.NON_INTERLEAVED,
}


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich, 2019)."""
    scale: Array = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return x * scale * weight


def linear(weights: Mapping[str, Array], name: str, x: Array) -> Array:
    """x (n_tokens, n_in) through the projection `name`, with its bias where the file has one: (n_tokens, n_out)."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def silu(x: Array) -> Array:
    """x * sigmoid(x); through tanh, which does not overflow."""
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))


def softmax(scores: Array) -> Array:
    """Softmax of one row of scores."""
    powers: Array = np.exp(scores - scores.max())
    return powers / float(powers.sum())


def layer_norm(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al., 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    y: Array = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps) * weight
    return y if bias is None else y + bias


def gelu(x: Array) -> Array:
    """The tanh form of GELU (Hendrycks and Gimpel, 2016)."""
    y: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return y


def softcapped(x: Array, limit: float | None) -> Array:
    """limit * tanh(x / limit), as in Gemma 2; x itself without a limit."""
    return x if limit is None else limit * np.tanh(x / limit)


def attend(query: Array, keys: Array, values: Array, softcap: float | None = None) -> Array:
    """One head at one position: query (head_dim), keys (n_seen, head_dim), values (n_seen, value_dim)."""
    return softmax(softcapped(keys @ query / math.sqrt(query.size), softcap)) @ values


def rope_frequencies(spec: TinySpec, weights: Mapping[str, Array]) -> Array:
    """The n_rot / 2 angles, in radians, by which one step of the position turns each pair."""
    plain = np.array([spec.freq_base ** (-2 * i / spec.n_rot) for i in range(spec.n_rot // 2)])
    scaling = spec.rope_scaling
    match scaling.kind:
        case RopeScalingKind.NONE:
            return plain
        case RopeScalingKind.LINEAR:
            return plain / scaling.factor
        case RopeScalingKind.LINEAR_TENSOR | RopeScalingKind.LLAMA3:
            return plain / weights["rope_freqs.weight"]
        case RopeScalingKind.YARN:
            return _yarn(spec, plain)


def _yarn(spec: TinySpec, plain: Array) -> Array:
    """YaRN (Peng et al., 2023): pairs that turn often keep their frequency, slow ones are stretched.

    Between them is a ramp, from the pair that makes beta_fast turns within the original context to the one that makes
    beta_slow, both rounded outwards to whole pairs.
    """
    scaling = spec.rope_scaling

    def pair_with_turns(n_turns: float) -> float:
        wavelength = scaling.original_n_ctx / n_turns
        return spec.n_rot * math.log(wavelength / (2 * math.pi)) / (2 * math.log(spec.freq_base))

    beta_fast = 32.0 if scaling.beta_fast is None else scaling.beta_fast
    beta_slow = 1.0 if scaling.beta_slow is None else scaling.beta_slow
    low = max(math.floor(pair_with_turns(beta_fast)), 0)
    high = min(math.ceil(pair_with_turns(beta_slow)), spec.n_rot - 1)
    stretched = np.clip((np.arange(spec.n_rot // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain * (1 - stretched) + plain / scaling.factor * stretched


def rope_magnitude(spec: TinySpec) -> float:
    """What cosine and sine are multiplied by: YaRN's 0.1 ln(factor) + 1, else 1."""
    if spec.rope_scaling.kind is RopeScalingKind.YARN:
        return 0.1 * math.log(spec.rope_scaling.factor) + 1
    return 1.0


def rotate(x: Array, position: int, frequencies: Array, style: RopeStyle, magnitude: float = 1.0) -> Array:
    """RoPE (Su et al., 2021) of x (n_heads, head_dim) at a position; dimensions past the pairs stay as they are."""
    n_pairs = frequencies.size
    out = x.copy()
    for i in range(n_pairs):
        a, b = (2 * i, 2 * i + 1) if style is RopeStyle.INTERLEAVED else (i, i + n_pairs)
        cos = magnitude * math.cos(position * frequencies[i])
        sin = magnitude * math.sin(position * frequencies[i])
        out[:, a] = x[:, a] * cos - x[:, b] * sin
        out[:, b] = x[:, a] * sin + x[:, b] * cos
    return out


@dataclass(frozen=True)
class PlainLayer:
    """One layer of a decoder, with everything that may tell it from the others.

    `frequencies` is None for a layer without RoPE; `window` is how many positions a token sees, itself included.
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    eps: float
    frequencies: Array | None
    style: RopeStyle = RopeStyle.NON_INTERLEAVED
    magnitude: float = 1.0
    window: int | None = None
    softcap: float | None = None
    qk_norm: bool = False
    layer_norm: bool = False
    activation: Callable[[Array], Array] = silu
    norms_after: bool = False
    parallel: bool = False


def _norm(layer: PlainLayer, weights: Mapping[str, Array], name: str, x: Array) -> Array:
    if layer.layer_norm:
        return layer_norm(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), layer.eps)
    return rms_norm(x, weights[f"{name}.weight"], layer.eps)


def _attention(layer: PlainLayer, weights: Mapping[str, Array], block: str, x: Array) -> Array:
    """The attention of one layer for normalised x (n_tokens, n_embd)."""
    n_tokens = x.shape[0]
    q = linear(weights, f"{block}.attn_q", x).reshape(n_tokens, layer.n_heads, layer.head_dim)
    k = linear(weights, f"{block}.attn_k", x).reshape(n_tokens, layer.n_kv_heads, layer.head_dim)
    v = linear(weights, f"{block}.attn_v", x).reshape(n_tokens, layer.n_kv_heads, layer.value_dim)
    if layer.qk_norm:
        q = rms_norm(q, weights[f"{block}.attn_q_norm.weight"], layer.eps)
        k = rms_norm(k, weights[f"{block}.attn_k_norm.weight"], layer.eps)

    if layer.frequencies is not None:
        for position in range(n_tokens):
            q[position] = rotate(q[position], position, layer.frequencies, layer.style, layer.magnitude)
            k[position] = rotate(k[position], position, layer.frequencies, layer.style, layer.magnitude)

    out = np.empty((n_tokens, layer.n_heads, layer.value_dim))
    for position in range(n_tokens):
        first = 0 if layer.window is None else max(0, position + 1 - layer.window)
        for head in range(layer.n_heads):
            kv_head = head // (layer.n_heads // layer.n_kv_heads)
            seen = slice(first, position + 1)
            out[position, head] = attend(q[position, head], k[seen, kv_head], v[seen, kv_head], layer.softcap)
    return linear(weights, f"{block}.attn_output", out.reshape(n_tokens, -1))


def _feed_forward(layer: PlainLayer, weights: Mapping[str, Array], block: str, x: Array) -> Array:
    """A gated feed-forward (Shazeer, 2020) for normalised x (n_tokens, n_embd)."""
    gated = layer.activation(linear(weights, f"{block}.ffn_gate", x)) * linear(weights, f"{block}.ffn_up", x)
    return linear(weights, f"{block}.ffn_down", gated)


def _plain_layer(layer: PlainLayer, weights: Mapping[str, Array], block: str, x: Array) -> Array:
    normed = _norm(layer, weights, f"{block}.attn_norm", x)
    attended = _attention(layer, weights, block, normed)
    if layer.parallel:
        return x + attended + _feed_forward(layer, weights, block, normed)
    if layer.norms_after:
        attended = _norm(layer, weights, f"{block}.post_attention_norm", attended)
    x = x + attended
    fed = _feed_forward(layer, weights, block, _norm(layer, weights, f"{block}.ffn_norm", x))
    if layer.norms_after:
        fed = _norm(layer, weights, f"{block}.post_ffw_norm", fed)
    return x + fed


def plain_decoder(layers: Sequence[PlainLayer], weights: Mapping[str, Array], tokens: Sequence[int]) -> list[Array]:
    """The residual stream (n_tokens, n_embd) after the embedding and after each layer: n_layers + 1 arrays."""
    states = [weights["token_embd.weight"][list(tokens)]]
    for index, layer in enumerate(layers):
        states.append(_plain_layer(layer, weights, f"blk.{index}", states[-1]))
    return states


def plain_hidden_states(spec: TinySpec, weights: Mapping[str, Array], tokens: Sequence[int]) -> list[Array]:
    """`plain_decoder` of a tiny model, whose layers are alike."""
    layer = PlainLayer(
        n_heads=spec.n_heads,
        n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        value_dim=spec.value_dim,
        eps=spec.norm_eps,
        frequencies=rope_frequencies(spec, weights),
        style=ROPE_STYLES[spec.architecture],
        magnitude=rope_magnitude(spec),
        qk_norm=spec.qk_norm,
    )
    return plain_decoder([layer] * spec.n_layers, weights, tokens)


def plain_forward(spec: TinySpec, weights: Mapping[str, Array], tokens: Sequence[int]) -> Array:
    """Logits (n_tokens, n_vocab) of tokens at the positions 0, 1, 2, ... of one sequence."""
    x = plain_hidden_states(spec, weights, tokens)[-1]
    x = rms_norm(x, weights["output_norm.weight"], spec.norm_eps)
    return linear(weights, "token_embd" if spec.tied else "output", x)


def rounded(weights: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """Weights in which every row is one float32 rounding (2^-24) larger or smaller."""
    rng = np.random.default_rng(seed)
    changed = dict(weights)
    for name, values in weights.items():
        if name != "rope_freqs.weight":
            signs = rng.choice([-1, 1], (values.shape[0], *(1,) * (values.ndim - 1)))
            changed[name] = values * (1 + 2.0**-24 * signs)
    return changed


def greedy(spec: TinySpec, weights: Mapping[str, Array], tokens: Sequence[int], n: int) -> list[int]:
    """The n tokens that follow when the likeliest is taken each time; everything is computed anew for each."""
    sequence = list(tokens)
    for _ in range(n):
        sequence.append(int(np.argmax(plain_forward(spec, weights, sequence)[-1])))
    return sequence[len(tokens) :]
