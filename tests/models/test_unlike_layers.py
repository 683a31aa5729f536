"""An architecture made for this test, whose layers have nothing in common, against the plain forward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.backends import Backend
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.engine.session import Session
from minfer.gguf import open_gguf, write_gguf
from minfer.graph import Graph, ops
from minfer.graph.ops import ActivationKind, RopeStyle
from minfer.models import ARCHITECTURES, Architecture, ModelConfig, declare_graph
from minfer.models.config import Norm, NormKind, Rope, Wiring
from minfer.models.keys import Keys
from minfer.models.reading import read_attention, read_dense, read_model, read_norm
from minfer.quants import GGMLType
from plain_forward import Array, PlainLayer, gelu, linear, plain_decoder, rms_norm, rounded, softcapped
from tiny_models import load_weights
from tiny_runtime import chunked_logits, same_bits, tiny_runtime, whole_logits

# The architecture.


def read(keys: Keys) -> ModelConfig:
    """Layers of four kinds: with a window and norms around, parallel with a LayerNorm, without RoPE, and plain."""
    norm = read_norm(keys)
    layer_norm = Norm(keys.number("attention.layer_norm_epsilon"), NormKind.LAYER)
    softcap = keys.number("attn_logit_softcapping")
    full = [replace(each, window=None, softcap=softcap) for each in read_attention(keys, RopeStyle.NON_INTERLEAVED)]
    window = keys.integer("attention.sliding_window")
    rope = Rope(RopeStyle.NON_INTERLEAVED, n_rot=full[0].head_dim, base=keys.number("rope.freq_base_swa"))
    mixers = [replace(full[0], window=window, rope=rope), full[1], replace(full[2], rope=None), full[3]]
    wirings = [Wiring.NORMS_AROUND, Wiring.PARALLEL, Wiring.PRE_NORM, Wiring.PRE_NORM]
    model = read_model(keys, norm, mixers, read_dense(keys, ActivationKind.GELU))
    layers = [replace(layer, wiring=wiring) for layer, wiring in zip(model.layers, wirings, strict=True)]
    layers[1] = replace(layers[1], norm=layer_norm)
    return replace(model, layers=tuple(layers), logit_softcap=keys.number("final_logit_softcapping"))


MOTLEY = Architecture("motley", read)
REGISTRY = {**ARCHITECTURES, MOTLEY.name: MOTLEY}

# A file of it, and what it computes.

N_VOCAB, N_EMBD, HEAD_DIM, WINDOW = 100, 48, 16, 8
N_HEADS, N_KV_HEADS, N_FF = (4, 2, 6, 3), (2, 1, 3, 3), (64, 96, 32, 48)
BASES = (100.0, 10_000.0, None, 10_000.0)
ATTENTION_CAP, LOGIT_CAP = 4.0, 2.0
EPS = float(np.float32(1e-5))
TOKENS = [(7 * i + 3) % N_VOCAB for i in range(70)]
METADATA: Mapping[str, object] = {
    "block_count": 4,
    "context_length": 256,
    "embedding_length": N_EMBD,
    "feed_forward_length": list(N_FF),
    "attention.head_count": list(N_HEADS),
    "attention.head_count_kv": list(N_KV_HEADS),
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": EPS,
    "attention.layer_norm_epsilon": EPS,
    "attention.sliding_window": WINDOW,
    "attn_logit_softcapping": ATTENTION_CAP,
    "final_logit_softcapping": LOGIT_CAP,
    "rope.freq_base": 10_000.0,
    "rope.freq_base_swa": 100.0,
}


def shapes() -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,)}
    for layer, (n_heads, n_kv_heads, n_ff) in enumerate(zip(N_HEADS, N_KV_HEADS, N_FF, strict=True)):
        norms = ["attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"][: (4, 1, 2, 2)[layer]]
        result |= {f"blk.{layer}.{name}.weight": (N_EMBD,) for name in norms}
        if layer == 1:
            result["blk.1.attn_norm.bias"] = (N_EMBD,)
        result |= {
            f"blk.{layer}.attn_q.weight": (n_heads * HEAD_DIM, N_EMBD),
            f"blk.{layer}.attn_k.weight": (n_kv_heads * HEAD_DIM, N_EMBD),
            f"blk.{layer}.attn_v.weight": (n_kv_heads * HEAD_DIM, N_EMBD),
            f"blk.{layer}.attn_output.weight": (N_EMBD, n_heads * HEAD_DIM),
            f"blk.{layer}.ffn_gate.weight": (n_ff, N_EMBD),
            f"blk.{layer}.ffn_up.weight": (n_ff, N_EMBD),
            f"blk.{layer}.ffn_down.weight": (N_EMBD, n_ff),
        }
    return result


def tensor(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Such that attention is far from uniform, and each part of a layer changes what comes after it."""
    if name.endswith("bias"):
        return rng.normal(0, 0.3, shape).astype(np.float32)
    if len(shape) == 1:
        return rng.normal(1, 0.2, shape).astype(np.float32)
    gain = 1.7 if "attn_q" in name or "attn_k" in name else 1.0
    return rng.normal(0, gain / math.sqrt(shape[1]), shape).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    target = tmp_path_factory.mktemp("motley") / "motley.gguf"
    metadata = {"general.architecture": "motley"} | {f"motley.{key}": value for key, value in METADATA.items()}
    tensors = {name: tensor(name, shape, rng) for name, shape in shapes().items()}
    write_gguf(target, metadata, [(name, x.shape, GGMLType.F32, x.view(np.uint8)) for name, x in tensors.items()])
    return target


def plain_layers() -> list[PlainLayer]:
    layers = []
    for n_heads, n_kv_heads, base in zip(N_HEADS, N_KV_HEADS, BASES, strict=True):
        frequencies = None if base is None else base ** (-np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
        layers.append(
            PlainLayer(
                n_heads, n_kv_heads, HEAD_DIM, HEAD_DIM, EPS, frequencies, softcap=ATTENTION_CAP, activation=gelu
            )
        )
    layers[0] = replace(layers[0], window=WINDOW, norms_after=True)
    layers[1] = replace(layers[1], parallel=True, layer_norm=True)
    return layers


def plain_logits(layers: list[PlainLayer], weights: Mapping[str, Array], cap: float | None = LOGIT_CAP) -> Array:
    x = plain_decoder(layers, weights, TOKENS)[-1]
    return softcapped(linear(weights, "token_embd", rms_norm(x, weights["output_norm.weight"], EPS)), cap)


# They agree.


@pytest.fixture(scope="module")
def expected(path: Path) -> Array:
    return plain_logits(plain_layers(), load_weights(path))


@pytest.fixture(scope="module")
def allowed(path: Path, expected: Array) -> float:
    """What rounding to float32 after each node may do to the logits: three times what one rounding of each row of the
    weights does, as explained in `test_forward.py`."""
    return 3 * float(np.abs(plain_logits(plain_layers(), rounded(load_weights(path), 0)) - expected).max())


# A kernel of the CPU adds up in float32: its rounding errors are those of a sum, not of its result.
@pytest.mark.parametrize(("backend", "times"), [(ReferenceBackend(), 1), (CpuBackend(), 10)], ids=["reference", "cpu"])
def test_logits_are_those_of_the_plain_forward_pass(
    backend: Backend, times: int, path: Path, expected: Array, allowed: float
) -> None:
    with tiny_runtime(path, backends=[backend], architectures=REGISTRY) as runtime:
        logits = whole_logits(runtime, TOKENS)
        assert expected.std() > 0.5
        assert allowed < 1e-5
        assert np.abs(logits - expected).max() <= times * allowed
        assert same_bits(chunked_logits(runtime, TOKENS, 7), logits)
        with Session(runtime) as session:
            assert same_bits(session.extend_all(TOKENS[:62]), logits[:62])
            assert same_bits(session.extend_all(TOKENS[62:], chunk=1), logits[62:])


OTHERWISE: list[tuple[int, dict[str, object]]] = [
    (0, {"window": None}),
    (0, {"window": WINDOW + 1}),
    (0, {"frequencies": plain_layers()[1].frequencies}),
    (0, {"norms_after": False}),
    (1, {"window": WINDOW}),
    (1, {"layer_norm": False}),
    (1, {"softcap": None}),
    (2, {"softcap": ATTENTION_CAP + 1}),
    (1, {"frequencies": plain_layers()[0].frequencies}),
    (2, {"frequencies": plain_layers()[1].frequencies}),
    (3, {"frequencies": None}),
    (3, {"activation": lambda x: np.maximum(x, 0)}),
]


@pytest.mark.parametrize(("layer", "changes"), OTHERWISE, ids=lambda x: "-".join(x) if isinstance(x, dict) else str(x))
def test_every_peculiarity_shows_in_the_logits(
    layer: int, changes: dict[str, object], path: Path, expected: Array, allowed: float
) -> None:
    layers = plain_layers()
    layers[layer] = replace(layers[layer], **changes)  # type: ignore[arg-type]
    assert np.abs(plain_logits(layers, load_weights(path)) - expected).max() > 100 * allowed


def test_the_cap_of_the_logits_shows(path: Path, expected: Array, allowed: float) -> None:
    assert np.abs(expected).max() < LOGIT_CAP
    for cap in (None, LOGIT_CAP + 0.1):
        assert np.abs(plain_logits(plain_layers(), load_weights(path), cap) - expected).max() > 100 * allowed


def graph_of(path: Path) -> Graph:
    with open_gguf(path) as file:
        return declare_graph(file, architectures=REGISTRY)[1]


def test_each_layer_has_its_own_regions_and_rotations(path: Path) -> None:
    graph = graph_of(path)
    regions = {value.name: value.spec.shape[1] for value in graph.values.values() if value.name.endswith("k_cache")}
    assert list(regions.values()) == list(N_KV_HEADS)
    rotated = [node.layer for node in graph.nodes if isinstance(node.op, ops.Rope)]
    assert rotated == [0, 0, 1, 1, 3, 3]
    windows = [node.op.window for node in graph.nodes if isinstance(node.op, ops.Attention)]
    assert windows == [WINDOW, None, None, None]
