"""The numbers that make a model: read from a file's metadata, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFFile, Metadata, MetadataValue
from minfer.models.rope_scaling import RopeParams, read_rope_params


@dataclass(frozen=True)
class HParams:
    """Hyper-parameters of a dense decoder. Widths count values, not bytes."""

    architecture: str
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    """width of a query and of a key"""
    value_dim: int
    """width of a value"""
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    """positions that the model was trained with"""
    norm_eps: float
    window: int | None
    """positions that a token sees, where the model has sliding windows"""
    rope: RopeParams


_REFUSED_KEYS: Final[Mapping[str, tuple[str, tuple[MetadataValue, ...]]]] = MappingProxyType(
    {
        "expert_count": ("a mixture of experts", (0,)),
        "use_parallel_residual": ("parallel attention and feed-forward", (False,)),
        "attention.causal": ("attention that sees later tokens", (True,)),
        "attention.clamp_kqv": ("clamping of q, k and v", (0,)),
        "attention.max_alibi_bias": ("ALiBi", (0,)),
        "attention.scale": ("an attention scale of the file's own", (0,)),
        "attention.output_scale": ("a scale of attention's output", (0, 1)),
        "attention.temperature_scale": ("an attention scale that changes with the position", (0,)),
        "attention.sliding_window_pattern": ("a sliding window in some of the layers", ()),
        "attn_logit_softcapping": ("soft-capping of attention", (0,)),
        "final_logit_softcapping": ("soft-capping of logits", (0,)),
        "logit_scale": ("a logit scale", (0, 1)),
        "embedding_scale": ("an embedding scale", (0, 1)),
        "residual_scale": ("a residual scale", (0, 1)),
        "rope.dimension_sections": ("a rotation by several positions", ()),
        "rope.scaling.alpha": ("a rotary base that is scaled", (0, 1)),
        "rope.scaling.yarn_log_multiplier": ("a YaRN magnitude of the file's own", (0,)),
        "rope.scaling.yarn_ext_factor": ("a YaRN extrapolation factor", (-1, 1)),
        "rope.scaling.yarn_attn_factor": ("a YaRN magnitude of the file's own", (1,)),
    }
)
"""What dense decoders here don't do, by the key that asks for it, and the values of the key that ask for nothing."""


def read_hparams(file: GGUFFile, architecture: str) -> HParams:
    """Reads and checks the hyper-parameters of a file.

    Raises:
        ModelError: a key is missing or of the wrong type, or the numbers can't belong together.
        UnsupportedError: the file asks for something that dense decoders here don't do.
    """
    metadata = file.metadata

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    for name, (meaning, neutral) in _REFUSED_KEYS.items():
        if key(name) in metadata and metadata[key(name)] not in neutral:
            raise UnsupportedError(f"{meaning} ({key(name)} = {metadata[key(name)]})")
    n_embd = _positive(metadata, key("embedding_length"))
    n_heads = _positive(metadata, key("attention.head_count"))
    n_kv_heads = _positive(metadata, key("attention.head_count_kv"), n_heads)
    if n_heads % n_kv_heads:
        raise ModelError(
            f"{n_heads} query heads can't share {n_kv_heads} KV heads evenly ({key('attention.head_count_kv')})"
        )
    for name in ("attention.key_length", "attention.value_length"):
        if key(name) not in metadata and n_embd % n_heads:
            raise ModelError(f"embedding_length {n_embd} is not divisible by {n_heads} heads, and there is no {name}")
    head_dim = _positive(metadata, key("attention.key_length"), n_embd // n_heads)
    value_dim = _positive(metadata, key("attention.value_length"), n_embd // n_heads)
    window = metadata.get_int(key("attention.sliding_window"), 0)
    if window < 0:
        raise ModelError(f"{key('attention.sliding_window')} is {window}")
    norm_eps = metadata.get_float(key("attention.layer_norm_rms_epsilon"))
    if not 0 <= norm_eps < 1:
        raise ModelError(f"{key('attention.layer_norm_rms_epsilon')} is {norm_eps}")
    n_ctx_train = _positive(metadata, key("context_length"))
    return HParams(
        architecture=architecture,
        n_layers=_positive(metadata, key("block_count")),
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        n_ff=_positive(metadata, key("feed_forward_length")),
        n_vocab=_n_vocab(file, n_embd),
        n_ctx_train=n_ctx_train,
        norm_eps=norm_eps,
        window=window or None,
        rope=read_rope_params(metadata, architecture, head_dim=head_dim, n_ctx_train=n_ctx_train),
    )


def _positive(metadata: Metadata, key: str, default: int | None = None) -> int:
    value = metadata.get_int(key) if default is None else metadata.get_int(key, default)
    if value < 1:
        raise ModelError(f"{key} is {value}, and must be at least 1")
    return value


def _n_vocab(file: GGUFFile, n_embd: int) -> int:
    info = file.tensors.get("token_embd.weight")
    if info is None:
        raise ModelError("the file has no tensor token_embd.weight: it holds no model, or only a vocabulary")
    if len(info.shape) != 2 or info.shape[1] != n_embd:
        raise ModelError(f"token_embd.weight is {list(info.shape)}, and should be [n_vocab, {n_embd}]")
    return info.shape[0]
