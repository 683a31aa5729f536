"""Small seeded GGUF models, written by the `gguf` package: one for each architecture and style of file.

Nothing here uses minfer, so these files and the weights read back from them are an independent oracle: `plain_forward`
says what the logits of each have to be. The metadata follows what the usual converters write, including what they leave
out (`attention.key_length` where it is n_embd / n_heads, `rope.dimension_count` and `vocab_size` for Qwen files).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as QType
from gguf import LlamaFileType
from numpy.typing import NDArray

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MERGES = (
    "Ġ t|h e|i n|a n|r e|Ġ a|e r|o n|Ġt he|o u|l l|e n|Ġ s|Ġ w|i t|o r|e s|Ġ o|in g|Ġ b|an d|Ġ c|i s|Ġ and|a t|"
    "e d|a l|Ġo f|Ġ in|Ġ m|h i|Ġ h|ll o|he llo|Ġw or|l d|Ġwor ld"
)
MERGES = tuple(_MERGES.split("|"))
ATTENTION_BIASES = ("attn_q", "attn_k", "attn_v")


class RopeScalingKind(Enum):
    """How a file stretches its rotary positions."""

    NONE = "none"
    LINEAR = "linear"  # by metadata: positions are divided by `factor`
    LINEAR_TENSOR = "linear_tensor"  # the same by `rope_freqs.weight`, every entry `factor`
    LLAMA3 = "llama3"  # by `rope_freqs.weight` alone, as converters write Llama 3.1 files
    YARN = "yarn"  # by metadata


@dataclass(frozen=True)
class RopeScaling:
    """The numbers of a scaling. Betas that are None are left out of the file: readers assume 32 and 1."""

    kind: RopeScalingKind = RopeScalingKind.NONE
    factor: float = 1.0
    original_n_ctx: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float | None = None
    beta_slow: float | None = None


def _as_stored(value: float) -> float:
    """GGUF keeps these numbers as float32; the oracle has to use the rounded ones."""
    return float(np.float32(value))


@dataclass(frozen=True)
class TinySpec:
    """Everything that determines a tiny file.

    `weight_types` overrides `weight_type` for some matrices, by name without suffix: `attn_q` in all layers, or
    `blk.1.attn_q` in one. `biases` lists the projections that have a bias. `omit_keys` are metadata keys (without the
    architecture's prefix) to leave out.
    """

    architecture: str = "llama"
    n_layers: int = 2
    n_embd: int = 64
    n_heads: int = 4
    n_kv_heads: int = 4
    head_dim: int = 16
    value_dim: int = 16
    n_rot: int = 16
    n_ff: int = 96
    n_vocab: int = 300
    n_ctx: int = 256
    tied: bool = False
    biases: tuple[str, ...] = ()
    qk_norm: bool = False
    freq_base: float = 10_000.0
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    norm_eps: float = _as_stored(1e-5)
    weight_type: QType = QType.F32
    weight_types: tuple[tuple[str, QType], ...] = ()
    file_type: LlamaFileType = LlamaFileType.ALL_F32
    omit_keys: tuple[str, ...] = ()
    seed: int = 0

    def type_of(self, tensor: str) -> QType:
        """The stored type of a matrix, by its name without `.weight`."""
        types = dict(self.weight_types)
        return types.get(tensor, types.get(tensor.split(".")[-1], self.weight_type))


_QWEN2 = TinySpec(
    architecture="qwen2",
    n_kv_heads=2,
    biases=ATTENTION_BIASES,
    freq_base=1_000_000.0,
    norm_eps=_as_stored(1e-6),
)
_QWEN3 = replace(_QWEN2, architecture="qwen3", biases=(), qk_norm=True)
_WIDE = TinySpec(n_embd=256, n_kv_heads=2, head_dim=64, value_dim=64, n_rot=64, n_ff=512)

TINY_SPECS: Mapping[str, TinySpec] = {
    "llama-mha": TinySpec(seed=1),
    "llama-mha-no-kv-count": TinySpec(omit_keys=("attention.head_count_kv",), seed=2),
    "llama-gqa": TinySpec(n_kv_heads=2, n_layers=3, seed=3),
    "llama-gqa-7-1": TinySpec(n_embd=112, n_heads=7, n_kv_heads=1, seed=4),
    "llama-tied": TinySpec(n_kv_heads=2, tied=True, seed=26),
    "llama-head-dim": TinySpec(n_kv_heads=2, head_dim=24, value_dim=24, n_rot=24, seed=6),
    "llama-value-dim": TinySpec(n_kv_heads=2, value_dim=24, seed=7),
    "llama-partial-rotary": TinySpec(n_kv_heads=2, n_rot=8, seed=8),
    "llama-biases": TinySpec(n_kv_heads=2, biases=(*ATTENTION_BIASES, "attn_output"), seed=10),
    "llama-linear": TinySpec(n_kv_heads=2, rope_scaling=RopeScaling(RopeScalingKind.LINEAR, 4.0), seed=11),
    "llama-linear-tensor": TinySpec(
        n_kv_heads=2, rope_scaling=RopeScaling(RopeScalingKind.LINEAR_TENSOR, 4.0), seed=11
    ),
    "llama-llama3": TinySpec(
        n_kv_heads=2,
        n_ctx=4096,
        freq_base=500_000.0,
        rope_scaling=RopeScaling(RopeScalingKind.LLAMA3, 8.0, original_n_ctx=512),
        seed=12,
    ),
    "llama-yarn": TinySpec(
        n_kv_heads=2, rope_scaling=RopeScaling(RopeScalingKind.YARN, 4.0, original_n_ctx=64), seed=13
    ),
    "llama-f16": TinySpec(n_kv_heads=2, weight_type=QType.F16, file_type=LlamaFileType.MOSTLY_F16, seed=15),
    "llama-bf16": TinySpec(n_kv_heads=2, weight_type=QType.BF16, file_type=LlamaFileType.MOSTLY_BF16, seed=15),
    "llama-q8_0": TinySpec(n_kv_heads=2, weight_type=QType.Q8_0, file_type=LlamaFileType.MOSTLY_Q8_0, seed=16),
    "llama-legacy-quants": TinySpec(
        n_kv_heads=2,
        weight_type=QType.Q4_0,
        weight_types=(
            ("token_embd", QType.Q5_0),
            ("output", QType.Q8_0),
            ("attn_q", QType.Q4_1),
            ("attn_v", QType.Q5_1),
            ("ffn_down", QType.Q4_1),
            ("blk.1.ffn_down", QType.Q5_0),
        ),
        file_type=LlamaFileType.MOSTLY_Q4_0,
        seed=17,
    ),
    "llama-k-quants": replace(
        _WIDE,
        weight_type=QType.Q4_K,
        weight_types=(
            ("output", QType.Q6_K),
            ("attn_k", QType.Q8_0),
            ("attn_v", QType.Q6_K),
            ("ffn_down", QType.Q6_K),
            ("blk.1.ffn_down", QType.Q4_K),
        ),
        file_type=LlamaFileType.MOSTLY_Q4_K_M,
        seed=18,
    ),
    "llama-k-quants-tied": replace(
        _WIDE,
        tied=True,
        weight_type=QType.Q3_K,
        weight_types=(("token_embd", QType.Q6_K), ("attn_q", QType.Q2_K), ("attn_v", QType.Q5_K)),
        file_type=LlamaFileType.MOSTLY_Q3_K_M,
        seed=53,
    ),
    "qwen2": replace(_QWEN2, seed=21),
    "qwen2-tied": replace(_QWEN2, tied=True, seed=34),
    "qwen2-partial-rotary": replace(_QWEN2, n_rot=8, seed=22),
    "qwen2-yarn": replace(
        _QWEN2,
        n_ctx=1024,
        freq_base=10_000.0,
        rope_scaling=RopeScaling(RopeScalingKind.YARN, 4.0, 256, beta_fast=4.0, beta_slow=0.5),
        seed=23,
    ),
    "qwen3": replace(_QWEN3, head_dim=32, value_dim=32, n_rot=32, seed=24),
    "qwen3-tied": replace(_QWEN3, n_heads=8, n_kv_heads=2, tied=True, seed=29),
}


def tensor_shapes(spec: TinySpec) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, in file order, with its NumPy shape: matrices are (n_out, n_in)."""
    q_width, k_width = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    projections = {
        "attn_q": (q_width, spec.n_embd),
        "attn_k": (k_width, spec.n_embd),
        "attn_v": (spec.n_kv_heads * spec.value_dim, spec.n_embd),
        "attn_output": (spec.n_embd, spec.n_heads * spec.value_dim),
        "ffn_gate": (spec.n_ff, spec.n_embd),
        "ffn_up": (spec.n_ff, spec.n_embd),
        "ffn_down": (spec.n_embd, spec.n_ff),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (spec.n_vocab, spec.n_embd)}
    if spec.rope_scaling.kind in (RopeScalingKind.LINEAR_TENSOR, RopeScalingKind.LLAMA3):
        shapes["rope_freqs.weight"] = (spec.n_rot // 2,)
    for layer in range(spec.n_layers):
        block = f"blk.{layer}"
        shapes[f"{block}.attn_norm.weight"] = (spec.n_embd,)
        shapes[f"{block}.ffn_norm.weight"] = (spec.n_embd,)
        if spec.qk_norm:
            shapes[f"{block}.attn_q_norm.weight"] = (spec.head_dim,)
            shapes[f"{block}.attn_k_norm.weight"] = (spec.head_dim,)
        for name, shape in projections.items():
            shapes[f"{block}.{name}.weight"] = shape
            if name in spec.biases:
                shapes[f"{block}.{name}.bias"] = shape[:1]
    shapes["output_norm.weight"] = (spec.n_embd,)
    if not spec.tied:
        shapes["output.weight"] = (spec.n_vocab, spec.n_embd)
    return shapes


def llama3_factors(spec: TinySpec) -> NDArray[np.float32]:
    """What Llama 3.1 divides each of the n_rot / 2 rotary frequencies by, as float32.

    1 for wavelengths shorter than original_n_ctx / high_freq_factor, `factor` for those longer than
    original_n_ctx / low_freq_factor, and in between a linear blend of the frequencies (the published `llama3` scaling).
    """
    scaling = spec.rope_scaling
    factors = []
    for i in range(spec.n_rot // 2):
        n_turns = scaling.original_n_ctx / (2 * np.pi * spec.freq_base ** (2 * i / spec.n_rot))
        kept = (n_turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        factors.append(1 / (kept + (1 - kept) / scaling.factor))
    return np.array(factors, dtype=np.float32)


# Where the float16 scale of a block stands, where its minimum's scale (if any), and the ratio of the two at which the
# weights of blocks of random bytes have a mean near zero. The gguf package reads these types but can't write them.
_SCALES: Mapping[QType, tuple[int, int | None, float]] = {
    QType.Q2_K: (80, 82, 1.5),
    QType.Q3_K: (108, None, 0.0),
    QType.Q4_K: (0, 2, 7.5),
    QType.Q5_K: (0, 2, 15.5),
    QType.Q6_K: (208, None, 0.0),
}


def _random_blocks(rng: np.random.Generator, qtype: QType, shape: tuple[int, ...], std: float) -> NDArray[np.uint8]:
    """A matrix of random blocks, whose weights have about this standard deviation; any quants and scales are valid."""
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[qtype]
    d_at, min_at, ratio = _SCALES[qtype]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // n_values, n_bytes), dtype=np.uint8)

    def set_scales(d: NDArray[np.float64]) -> NDArray[np.uint8]:
        blocks[..., d_at : d_at + 2] = d.astype("<f2")[..., None].view(np.uint8)
        if min_at is not None:
            blocks[..., min_at : min_at + 2] = (ratio * d).astype("<f2")[..., None].view(np.uint8)
        return blocks.reshape(shape[0], -1)

    unit = gguf.quants.dequantize(set_scales(np.ones(blocks.shape[:2])), qtype)
    return set_scales(std / unit.std() * rng.uniform(0.7, 1.3, blocks.shape[:2]))


def _std(spec: TinySpec, stem: str, n_in: int) -> float:
    """Standard deviations at which attention is far from uniform and the logits spread by about 2."""
    if stem == "token_embd":
        return 2 / math.sqrt(n_in) if spec.tied else 0.5
    gain = {"attn_q": 1.4, "attn_k": 1.4, "output": 2.0}.get(stem, 1.0)
    return gain / math.sqrt(n_in)


def _tensor(spec: TinySpec, name: str, shape: tuple[int, ...]) -> tuple[NDArray[np.generic], QType]:
    """The stored data of one tensor: the same for a name and a seed, whatever else is in the file."""
    rng = np.random.default_rng([spec.seed, zlib.crc32(name.encode())])
    stem, suffix = name.rsplit(".", 1)
    if name == "rope_freqs.weight":
        if spec.rope_scaling.kind is RopeScalingKind.LLAMA3:
            return np.resize(llama3_factors(spec), shape), QType.F32
        return np.full(shape, spec.rope_scaling.factor, dtype=np.float32), QType.F32
    if suffix == "bias":
        return rng.normal(0, 0.3, shape).astype(np.float32), QType.F32
    if stem.endswith("_norm"):
        centre = 1.4 if stem.endswith(("attn_q_norm", "attn_k_norm")) else 1.0
        return rng.normal(centre, 0.2, shape).astype(np.float32), QType.F32
    qtype = spec.type_of(stem)
    std = _std(spec, stem.split(".")[-1], shape[1])
    if qtype in _SCALES:
        return _random_blocks(rng, qtype, shape, std), qtype
    return gguf.quants.quantize(rng.normal(0, std, shape).astype(np.float32), qtype), qtype


def _add_metadata(writer: gguf.GGUFWriter, spec: TinySpec) -> None:
    writer.add_type("model")
    writer.add_name(f"Tiny {spec.architecture}")
    writer.add_file_type(spec.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    values: dict[str, int | float | str] = {
        "block_count": spec.n_layers,
        "context_length": spec.n_ctx,
        "embedding_length": spec.n_embd,
        "feed_forward_length": spec.n_ff,
        "attention.head_count": spec.n_heads,
        "attention.head_count_kv": spec.n_kv_heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.freq_base": float(spec.freq_base),
    }
    if spec.head_dim * spec.n_heads != spec.n_embd or spec.value_dim != spec.head_dim:
        values |= {"attention.key_length": spec.head_dim, "attention.value_length": spec.value_dim}
    if spec.architecture == "llama" or spec.n_rot != spec.head_dim:
        values["rope.dimension_count"] = spec.n_rot
    if spec.architecture == "llama":
        values["vocab_size"] = spec.n_vocab

    scaling = spec.rope_scaling
    if scaling.kind in (RopeScalingKind.LINEAR, RopeScalingKind.YARN):
        values |= {"rope.scaling.type": scaling.kind.value, "rope.scaling.factor": float(scaling.factor)}
    if scaling.kind is RopeScalingKind.YARN:
        values["rope.scaling.original_context_length"] = scaling.original_n_ctx
        if scaling.beta_fast is not None:
            values["rope.scaling.yarn_beta_fast"] = float(scaling.beta_fast)
        if scaling.beta_slow is not None:
            values["rope.scaling.yarn_beta_slow"] = float(scaling.beta_slow)

    for key in spec.omit_keys:
        del values[key]
    for key, value in values.items():
        match value:
            case str():
                writer.add_string(f"{spec.architecture}.{key}", value)
            case int():
                writer.add_uint32(f"{spec.architecture}.{key}", value)
            case float():
                writer.add_float32(f"{spec.architecture}.{key}", value)


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for the bytes 0..255 in byte-level BPE vocabularies (GPT-2's mapping)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def vocabulary(spec: TinySpec) -> list[str]:
    """The tokens by id: the bytes in order, the merges, the three special tokens, then unused ones up to n_vocab."""
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES), END_OF_TEXT, IM_START, IM_END]
    return [*tokens, *(f"[PAD{i}]" for i in range(len(tokens), spec.n_vocab))]


def _add_tokenizer(writer: gguf.GGUFWriter, spec: TinySpec) -> None:
    tokens = vocabulary(spec)
    first_special_id = tokens.index(END_OF_TEXT)
    types = [gguf.TokenType.NORMAL] * first_special_id + [gguf.TokenType.CONTROL] * 3
    types += [gguf.TokenType.UNUSED] * (len(tokens) - len(types))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(IM_END))
    writer.add_pad_token_id(tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _write(path: Path, spec: TinySpec, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    writer = gguf.GGUFWriter(path, spec.architecture)
    _add_metadata(writer, spec)
    _add_tokenizer(writer, spec)
    for name, shape in shapes.items():
        data, qtype = _tensor(spec, name, shape)
        writer.add_tensor(name, data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny(path: Path, spec: TinySpec) -> Path:
    """Writes the model to `path` and returns it. The same spec gives the same bytes."""
    return _write(path, spec, tensor_shapes(spec))


def write_vocabulary_only(path: Path, spec: TinySpec) -> Path:
    """A file with the model's metadata and tokenizer, and no tensors."""
    return _write(path, spec, {})


def write_unknown_architecture(path: Path, architecture: str = "aardvark") -> Path:
    """A whole and valid model of an architecture that nobody has heard of."""
    return write_tiny(path, TinySpec(architecture=architecture))


def write_missing_tensor(path: Path, spec: TinySpec, name: str) -> Path:
    """The model without one of its tensors."""
    shapes = tensor_shapes(spec)
    del shapes[name]
    return _write(path, spec, shapes)


def write_misshapen_tensor(path: Path, spec: TinySpec, name: str, shape: tuple[int, ...]) -> Path:
    """The model with one of its tensors in another NumPy shape."""
    shapes = tensor_shapes(spec)
    if name not in shapes:
        raise KeyError(name)
    return _write(path, spec, shapes | {name: shape})


def load_weights(path: Path) -> dict[str, NDArray[np.float64]]:
    """Every tensor of a file by name, dequantised to float32 and then widened to float64."""
    reader = gguf.GGUFReader(path)
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in reader.tensors
    }
