"""What a model is, as data: one `LayerConfig` a layer, and what stands before and after the layers.

Nothing here says that two layers are alike. Architectures read these from a file's metadata, and `blocks.py` declares
graphs from them. Widths count values, not bytes. Whether there are biases, and whether the output projection is the
embedding's table, is told by the file's tensors and not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from minfer.graph.ops import ActivationKind, RopeStyle


class NormKind(StrEnum):
    """Which norm."""

    RMS = "rms"
    """RMSNorm (Zhang and Sennrich, 2019)"""
    LAYER = "layer"
    """LayerNorm (Ba et al., 2016), with a bias where the file has one"""


@dataclass(frozen=True)
class Norm:
    """A norm of rows, with weights from the file."""

    eps: float
    """what is added to the mean of the squares, or to the variance"""
    kind: NormKind = NormKind.RMS


class RopeScalingKind(StrEnum):
    """`rope.scaling.type`, by its name in files."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True)
class RopeScaling:
    """How rotary positions are stretched beyond the context of the training. `rope_scaling.py` has the formulas."""

    kind: RopeScalingKind = RopeScalingKind.NONE
    factor: float = 1.0
    """how many times longer the context is than it was in training before the scaling"""
    n_ctx_original: int = 0
    """positions of that shorter context; nothing reads it where the kind is `NONE` or `LINEAR`"""
    attn_factor: float = 1.0
    """cosines and sines are multiplied by this"""
    beta_fast: float = 32.0
    """YaRN: dimensions with more turns than this over the original context are kept"""
    beta_slow: float = 1.0
    """YaRN: dimensions with fewer turns than this are interpolated"""
    low_freq_factor: float = 1.0
    """llama3: dimensions with fewer turns than this are interpolated"""
    high_freq_factor: float = 4.0
    """llama3: dimensions with more turns than this are kept"""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al., 2021) of a layer's queries and keys."""

    style: RopeStyle
    n_rot: int
    """the first so many dimensions of a head are rotated"""
    base: float
    scaling: RopeScaling = RopeScaling()


@dataclass(frozen=True)
class Attention:
    """Softmax attention (Vaswani et al., 2017) with grouped queries (Ainslie et al., 2023)."""

    n_heads: int
    n_kv_heads: int
    """a divisor of n_heads"""
    head_dim: int
    """width of a query and of a key"""
    value_dim: int
    """width of a value"""
    scale: float
    """scores are multiplied by this; usually 1 / sqrt(head_dim)"""
    rope: Rope | None
    """None: queries and keys are not rotated"""
    window: int | None = None
    """how many positions a token sees, itself included; None: all up to its own"""
    softcap: float | None = None
    """scores s become softcap * tanh(s / softcap)"""
    qk_norm: Norm | None = None
    """a norm of each head's query and key, before the rotation"""


@dataclass(frozen=True)
class Dense:
    """A gated feed-forward (Shazeer, 2020): down(activation(gate x) * up x)."""

    n_ff: int
    """width between the projections"""
    activation: ActivationKind = ActivationKind.SILU


Mixer: TypeAlias = Attention
"""What lets a layer's tokens see earlier ones: one dataclass a kind."""

FeedForward: TypeAlias = Dense
"""What a layer does to each token by itself: one dataclass a kind."""


class Wiring(StrEnum):
    """How a layer joins its mixer M and its feed-forward F to the hidden state x. Each norm has its own weights."""

    PRE_NORM = "pre_norm"
    """h = x + M(norm(x)); then h + F(norm(h))"""
    NORMS_AROUND = "norms_around"
    """h = x + norm(M(norm(x))); then h + norm(F(norm(h)))"""
    PARALLEL = "parallel"
    """n = norm(x); then x + M(n) + F(n)"""


@dataclass(frozen=True)
class LayerConfig:
    """One layer."""

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    """all norms of hidden states in this layer"""
    wiring: Wiring = Wiring.PRE_NORM


@dataclass(frozen=True)
class ModelConfig:
    """A whole model. `layers` is in order, the first one first."""

    architecture: str
    """as in `general.architecture`"""
    n_vocab: int
    n_embd: int
    """width of the hidden state between layers"""
    n_ctx_train: int
    """how many positions the model was trained with"""
    layers: tuple[LayerConfig, ...]
    output_norm: Norm
    """the norm after the last layer"""
    logit_softcap: float | None = None
    """logits x become logit_softcap * tanh(x / logit_softcap)"""

    @property
    def n_layers(self) -> int:
        return len(self.layers)
