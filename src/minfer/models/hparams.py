"""The numbers that make a model: read from a file's metadata, checked before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFFile, Metadata
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


_REFUSED_KEYS = {
    "expert_count": "a mixture of experts",
    "attention.clamp_kqv": "clamping of q, k and v",
    "attention.max_alibi_bias": "ALiBi",
    "attention.scale": "an attention scale of the file's own",
    "attn_logit_softcapping": "soft-capping of attention",
    "final_logit_softcapping": "soft-capping of logits",
    "logit_scale": "a logit scale",
    "embedding_scale": "an embedding scale",
    "residual_scale": "a residual scale",
}


def read_hparams(file: GGUFFile, architecture: str) -> HParams:
    """Reads and checks the hyper-parameters of a file.

    Raises:
        ModelError: a key is missing or of the wrong type, or the numbers can't belong together.
        UnsupportedError: the file asks for something that dense decoders here don't do.
    """
    metadata = file.metadata

    def key(name: str) -> str:
        return f"{architecture}.{name}"

    for name, meaning in _REFUSED_KEYS.items():
        if key(name) in metadata and metadata[key(name)]:
            raise UnsupportedError(f"{meaning} ({key(name)} = {metadata[key(name)]})")
    n_embd = _positive(metadata, key("embedding_length"))
    n_heads = _positive(metadata, key("attention.head_count"))
    n_kv_heads = _positive(metadata, key("attention.head_count_kv"), n_heads)
    head_dim = _positive(metadata, key("attention.key_length"), n_embd // n_heads)
    value_dim = _positive(metadata, key("attention.value_length"), head_dim)
    if n_heads % n_kv_heads:
        raise ModelError(
            f"{n_heads} query heads can't share {n_kv_heads} KV heads evenly ({key('attention.head_count_kv')})"
        )
    if key("attention.key_length") not in metadata and n_embd % n_heads:
        raise ModelError(f"embedding_length {n_embd} is not divisible by {n_heads} heads, and there is no key_length")
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
        window=metadata.get_int(key("attention.sliding_window"), 0) or None,
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
