"""Graphs declared from files: what they hold, and which files are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edited_gguf import edited
from minfer.errors import GGUFError, GraphError, ModelError, UnsupportedError
from minfer.gguf import open_gguf
from minfer.graph import Graph, Symbol, TensorSpec, ValueKind, ops, verify
from minfer.graph.ops import MatMul, Reshape, RMSNorm, Rope, RopeStyle, SelectRows
from minfer.models import ARCHITECTURES, Architecture, Declaration, KVTypes, ModelConfig, declare_graph, read_config
from minfer.models.blocks import kv_regions
from minfer.models.config import Attention
from minfer.models.keys import Keys
from minfer.models.qwen3 import QWEN3
from minfer.quants import GGMLType, row_bytes
from small_graphs import node, value
from tiny_models import (
    TINY_SPECS,
    tensor_shapes,
    write_misshapen_tensor,
    write_missing_tensor,
    write_tiny,
    write_unknown_architecture,
)
from tiny_runtime import tiny_runtime

TinyPath = Callable[[str], Path]


def declared(path: Path, kv_types: KVTypes | None = None) -> tuple[ModelConfig, Graph]:
    with open_gguf(path) as file:
        return declare_graph(file, kv_types)


# What a graph holds.


@pytest.mark.parametrize("name", TINY_SPECS)
def test_every_tensor_of_the_file_is_used_as_it_is_stored(name: str, tiny_path: TinyPath) -> None:
    _, graph = declared(tiny_path(name))
    verify(graph)
    shapes = tensor_shapes(TINY_SPECS[name])
    shapes.pop("rope_freqs.weight", None)  # it is in the frequencies
    weights = {v.name: v.spec for v in graph.of_kind(ValueKind.WEIGHT)}
    assert {key: spec.shape for key, spec in weights.items()} == shapes
    with open_gguf(tiny_path(name)) as file:
        assert all(file.tensors[key].ggml_type is spec.ggml_type for key, spec in weights.items())
    assert value(graph, "output").spec.shape == (Symbol.N_OUTPUTS, 300)
    assert graph.outputs.keys() == {"logits"}


def test_a_tied_projection_is_the_embedding_table(tiny_path: TinyPath) -> None:
    _, graph = declared(tiny_path("qwen2-tied"))
    table = value(graph, "token_embd.weight").id
    assert node(graph, "output").inputs[1] == table == node(graph, "embedding").inputs[1]
    _, graph = declared(tiny_path("qwen2"))
    assert node(graph, "output").inputs[1] == value(graph, "output.weight").id


def test_only_the_rows_asked_for_are_projected(tiny_path: TinyPath) -> None:
    _, graph = declared(tiny_path("llama-gqa"))
    last = [each for each in graph.nodes if each.layer is None][1:]
    assert [type(each.op) for each in last] == [SelectRows, RMSNorm, MatMul]
    assert all(graph.value(each.outputs[0]).spec.shape[0] is Symbol.N_OUTPUTS for each in last)


@pytest.mark.parametrize(("name", "n_norms"), [("qwen2", 2), ("qwen3", 4)])
def test_qwen3_normalises_queries_and_keys_before_they_turn(name: str, n_norms: int, tiny_path: TinyPath) -> None:
    _, graph = declared(tiny_path(name))
    norms = [each for each in graph.nodes if each.layer == 0 and isinstance(each.op, RMSNorm)]
    assert len(norms) == n_norms
    rope = node(graph, "blk.0.q_rope")
    before = next(each for each in graph.nodes if rope.inputs[0] in each.outputs)
    assert isinstance(before.op, RMSNorm if name == "qwen3" else Reshape)
    if name == "qwen3":
        assert before.name == "blk.0.attn_q_norm"
        assert graph.value(before.inputs[0]).spec.shape == (Symbol.N_TOKENS, 4, 32)


@pytest.mark.parametrize("name", TINY_SPECS)
def test_attention_is_scaled_by_the_width_of_a_key(name: str, tiny_path: TinyPath) -> None:
    spec = TINY_SPECS[name]
    _, graph = declared(tiny_path(name))
    found = [each.op for each in graph.nodes if isinstance(each.op, ops.Attention)]
    assert [op.scale**-2 for op in found] == pytest.approx([spec.head_dim] * spec.n_layers, rel=1e-14)
    assert {op.window for op in found} == {None}
    heads = value(graph, "blk.0.heads").spec
    assert heads == TensorSpec((Symbol.N_TOKENS, spec.n_heads, spec.value_dim))


def test_the_hidden_state_after_each_layer_has_a_name(tiny_path: TinyPath) -> None:
    _, graph = declared(tiny_path("llama-gqa"))
    for layer in range(3):
        assert value(graph, f"blk.{layer}.hidden").spec.shape == (Symbol.N_TOKENS, 64)
        assert node(graph, f"blk.{layer}.hidden").layer == layer


# The KV cache.


def bytes_a_position(graph: Graph) -> int:
    return sum(v.spec.n_bytes({Symbol.N_CELLS: 1}) for v in graph.of_kind(ValueKind.STATE))


@pytest.mark.parametrize(
    ("n_layers", "n_kv_heads", "head_dim", "n_bytes"), [(24, 2, 64, 24_576), (36, 8, 128, 294_912)]
)
def test_kv_bytes_a_position(n_layers: int, n_kv_heads: int, head_dim: int, n_bytes: int, tiny_path: TinyPath) -> None:
    """Qwen2.5-0.5B, and Qwen3-4B; with q8_0 it is 34 bytes for 32 values, 3.76 times less."""
    with open_gguf(tiny_path("qwen2")) as file:
        config, _ = read_config(file)
        attention = Attention(16, n_kv_heads, head_dim, head_dim, scale=1.0, rope=None)
        for ggml_type, wanted in ((GGMLType.F32, n_bytes), (GGMLType.F16, n_bytes // 2), (GGMLType.Q8_0, None)):
            model = Declaration(file, config, KVTypes(ggml_type, ggml_type))
            for layer in range(n_layers):
                kv_regions(model, attention, f"blk.{layer}")
            met = bytes_a_position(model.builder.build({}))
            assert met == (wanted or n_bytes * 34 // 128)
            assert met == n_layers * n_kv_heads * 2 * row_bytes(ggml_type, head_dim)


def test_regions_have_the_types_asked_for(tiny_path: TinyPath) -> None:
    _, graph = declared(tiny_path("qwen3"), KVTypes(GGMLType.Q8_0, GGMLType.F16))
    for layer in range(2):
        assert value(graph, f"blk.{layer}.k_cache").spec == TensorSpec((Symbol.N_CELLS, 2, 32), GGMLType.Q8_0)
        assert value(graph, f"blk.{layer}.v_cache").spec == TensorSpec((Symbol.N_CELLS, 2, 32), GGMLType.F16)
    _, graph = declared(tiny_path("qwen3"))
    assert [value(graph, f"blk.0.{side}_cache").spec.ggml_type for side in "kv"] == [GGMLType.F16, GGMLType.F16]


@pytest.mark.parametrize(
    ("name", "kv_types", "what"),
    [
        ("llama-gqa", KVTypes(GGMLType.Q8_0, GGMLType.F32), "cache type q8_0 for keys of width 16"),
        ("llama-gqa", KVTypes(GGMLType.F32, GGMLType.Q8_0), "cache type q8_0 for values of width 16"),
        ("llama-head-dim", KVTypes(GGMLType.Q8_0, GGMLType.Q8_0), "cache type q8_0 for keys of width 24"),
        ("llama-k-quants", KVTypes(GGMLType.Q4_K, GGMLType.F32), "cache type q4_k for keys of width 64"),
    ],
)
def test_widths_that_are_no_whole_number_of_blocks(
    name: str, kv_types: KVTypes, what: str, tiny_path: TinyPath
) -> None:
    with pytest.raises(UnsupportedError, match="use a float cache type") as caught:
        declared(tiny_path(name), kv_types)
    assert caught.value.what == what


# Files that are refused.


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "blk.0.attn_norm.weight",
        "blk.1.attn_q.weight",
        "blk.0.attn_output.weight",
        "blk.1.ffn_down.weight",
        "output_norm.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    path = write_missing_tensor(tmp_path / "model.gguf", TINY_SPECS["qwen2"], name)
    with pytest.raises(ModelError, match=f"no tensor {re.escape(name)}"):
        declared(path)


def test_missing_norms_of_queries_are_named(tmp_path: Path) -> None:
    path = write_missing_tensor(tmp_path / "model.gguf", TINY_SPECS["qwen3"], "blk.1.attn_q_norm.weight")
    with pytest.raises(ModelError, match=r"no tensor blk\.1\.attn_q_norm\.weight, which qwen3 needs"):
        declared(path)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("blk.0.attn_k.weight", (48, 64), "[32, 64]"),
        ("blk.0.attn_k.weight", (32, 96), "[32, 64]"),
        ("blk.1.ffn_down.weight", (96, 64), "[64, 96]"),
        ("blk.1.ffn_norm.weight", (32,), "[64]"),
        ("blk.0.attn_v.bias", (64,), "[32]"),
        ("output.weight", (301, 64), "[300, 64]"),
    ],
)
def test_a_misshapen_tensor_is_named_with_both_shapes(
    name: str, shape: tuple[int, ...], wanted: str, tmp_path: Path
) -> None:
    path = write_misshapen_tensor(tmp_path / "model.gguf", TINY_SPECS["qwen2"], name, shape)
    message = f"{name} is {list(shape)}, and the metadata make it {wanted}"
    with pytest.raises(ModelError, match=re.escape(message)):
        declared(path)


@pytest.mark.parametrize("shape", [(300,), (300, 32), (2, 300, 64)])
def test_a_misshapen_table_is_named(shape: tuple[int, ...], tiny_path: TinyPath, tmp_path: Path) -> None:
    table = {"token_embd.weight": (shape, GGMLType.F32)}
    path = edited(tiny_path("qwen2"), tmp_path / "model.gguf", tensors=table)
    with pytest.raises(ModelError, match=re.escape(f"token_embd.weight is {list(shape)}, and should be [n_vocab, 64]")):
        declared(path)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((4,), "rope_freqs.weight has 4 values, and 8 pairs"), ((2, 4), "must have one dimension")],
)
def test_misshapen_rotary_factors(shape: tuple[int, ...], message: str, tiny_path: TinyPath, tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": (shape, GGMLType.F32)}
    path = edited(tiny_path("llama-linear-tensor"), tmp_path / "model.gguf", tensors=factors)
    with pytest.raises(ModelError, match=message):
        declared(path)


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        ({"blk.0.attn_sinks.weight": (4,)}, "1 tensor of this llama file (blk.0.attn_sinks.weight)"),
        ({"blk.2.attn_q.weight": (64, 64)}, "1 tensor of this llama file (blk.2.attn_q.weight)"),
        ({"blk.0.attn_q_norm.weight": (16,), "output.bias": (300,)}, "blk.0.attn_q_norm.weight, output.bias"),
        ({f"v.blk.{i}.weight": (4,) for i in range(7)}, "7 tensors of this llama file (v.blk.0.weight, v.blk.1.weight"),
    ],
)
def test_tensors_that_would_be_left_out_are_named(
    extra: dict[str, tuple[int, ...]], shown: str, tiny_path: TinyPath, tmp_path: Path
) -> None:
    """As llama files go: an output bias counts too, since no projection here has one without saying so."""
    tensors = {name: (shape, GGMLType.F32) for name, shape in extra.items()}
    path = edited(tiny_path("llama-tied"), tmp_path / "model.gguf", tensors=tensors)
    with pytest.raises(UnsupportedError, match="more than what is built") as caught:
        declared(path)
    assert shown in str(caught.value)
    assert ("..." in str(caught.value)) == (len(extra) > 5)


def test_a_weight_type_that_no_backend_reads_is_refused_before_running(tiny_path: TinyPath, tmp_path: Path) -> None:
    tensors = {"blk.1.ffn_up.weight": ((96, 64), GGMLType.I32)}
    path = edited(tiny_path("qwen2"), tmp_path / "model.gguf", tensors=tensors)
    with (
        pytest.raises(UnsupportedError, match=r"blk\.1\.ffn_up.*a matrix of weights can't be I32"),
        tiny_runtime(path),
    ):
        pass


def test_an_unknown_architecture_lists_those_there_are(tmp_path: Path) -> None:
    path = write_unknown_architecture(tmp_path / "model.gguf", "aardvark")
    with pytest.raises(UnsupportedError, match="architecture 'aardvark'") as caught:
        declared(path)
    assert caught.value.supported == tuple(ARCHITECTURES)
    assert {"llama", "qwen2", "qwen3"} <= set(ARCHITECTURES)


@pytest.mark.parametrize("value", [None, 3])
def test_a_file_that_does_not_say_its_architecture(value: object, tiny_path: TinyPath, tmp_path: Path) -> None:
    path = edited(tiny_path("qwen2"), tmp_path / "model.gguf", {"general.architecture": value})
    with pytest.raises((ModelError, GGUFError), match=r"general\.architecture"):
        declared(path)


# A new architecture.


def test_names_are_those_in_files() -> None:
    for name, architecture in ARCHITECTURES.items():
        assert architecture.name == name


def toy_config(keys: Keys) -> ModelConfig:
    """A model without layers, whatever the file has."""
    return replace(QWEN3.read(keys), layers=())


def toy_decoder(model: Declaration) -> Graph:
    """One projection of the embedding, from the public pieces alone."""
    builder, config = model.builder, model.config
    table = model.weight("token_embd.weight", config.n_vocab, config.n_embd)
    x = model.norm(builder.embedding(builder.input("tokens"), table, "embedding"), config.output_norm, "output_norm")
    rows = builder.select_rows(x, builder.input("output_rows"), "rows")
    return model.finish(model.linear(rows, "output", config.n_vocab))


def test_a_new_architecture_needs_no_change_elsewhere(tmp_path: Path) -> None:
    """A toy that declares its graph itself, and one made of the shared blocks, beside those in the registry."""
    toy = Architecture("toy", toy_config, toy_decoder)
    kin = Architecture("kin", QWEN3.read)
    architectures = {**ARCHITECTURES, toy.name: toy, kin.name: kin}
    spec = replace(TINY_SPECS["qwen3"], architecture="kin")
    path = write_tiny(tmp_path / "kin.gguf", spec)
    with open_gguf(path) as file:
        config, graph = declare_graph(file, architectures=architectures)
        assert config.architecture == "kin"
    assert len(graph.nodes) == len(declared(write_tiny(tmp_path / "q.gguf", TINY_SPECS["qwen3"]))[1].nodes)
    assert {n.op.style for n in graph.nodes if isinstance(n.op, Rope)} == {RopeStyle.NON_INTERLEAVED}

    layers: dict[str, None] = {name: None for name in tensor_shapes(spec) if name.startswith("blk.")}
    path = write_tiny(tmp_path / "toy.gguf", replace(spec, architecture="toy"))
    with (
        open_gguf(path) as file,
        pytest.raises(UnsupportedError, match="tensors of this toy file"),
    ):
        declare_graph(file, architectures=architectures)
    with open_gguf(edited(path, tmp_path / "bare.gguf", tensors=layers)) as file:
        _, graph = declare_graph(file, architectures=architectures)
    assert [type(each.op).__name__ for each in graph.nodes] == ["Embedding", "RMSNorm", "SelectRows", "MatMul"]
    with pytest.raises(UnsupportedError, match="architecture 'toy'"):
        declared(path)


def test_a_declared_graph_is_verified(tiny_path: TinyPath) -> None:
    def forgetful(model: Declaration) -> Graph:
        builder = model.builder
        table = model.weight("token_embd.weight", 300, 64)
        heads = builder.split_heads(builder.embedding(builder.input("tokens"), table, "x"), 2, "heads")
        k, v = (builder.kv_region(name, 2, 32, GGMLType.F32) for name in "kv")
        return builder.build({"logits": builder.attention(heads, k, v, scale=1.0, window=None, name="y")})

    architecture = Architecture("qwen2", ARCHITECTURES["qwen2"].read, forgetful)
    with open_gguf(tiny_path("qwen2")) as file, pytest.raises(GraphError, match="y reads k before this step's store"):
        declare_graph(file, architectures={"qwen2": architecture})


def test_the_same_file_declares_the_same_graph(tiny_path: TinyPath) -> None:
    assert declared(tiny_path("qwen3")) == declared(tiny_path("qwen3"))
