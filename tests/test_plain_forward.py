"""The oracle itself: the tiny files are what converters write, and the plain forward pass is right on its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import jinja2
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import tiny_models
from plain_forward import (
    Array,
    RopeStyle,
    attend,
    greedy,
    plain_forward,
    plain_hidden_states,
    rms_norm,
    rope_frequencies,
    rotate,
    softmax,
)
from tiny_models import TINY_SPECS, load_weights, tensor_shapes, write_tiny

TOKENS = [(7 * i + 3) % 300 for i in range(12)]

# Logits of the token ids 0..3 after TOKENS, computed once by Hugging Face transformers 5.24 from the same weights, with
# its arithmetic widened to float64 (and, for Llama files, the rows of Q and K put back in their original order).
TRANSFORMERS_LOGITS = {
    "llama-gqa": (-0.919973, 0.316097, -1.714840, 2.759746),
    "llama-gqa-7-1": (1.601253, 1.290143, 1.286569, -2.697477),
    "llama-head-dim": (0.346496, 2.197175, -0.437821, 1.789320),
    "llama-biases": (-0.864616, -1.948914, 1.742174, 0.087137),
    "llama-linear": (3.061648, 0.657890, 1.430731, -0.996498),
    "llama-llama3": (-2.426425, -0.606496, -0.066695, 1.502283),
    "llama-yarn": (2.222050, 0.857074, 4.746675, -0.992622),
    "llama-k-quants": (-1.349412, 0.710609, -0.407758, -0.714861),
    "qwen2": (-1.247720, -0.168351, 1.233057, -1.863138),
    "qwen2-tied": (-1.551615, 1.402552, 0.267951, -1.281005),
    "qwen2-yarn": (-0.231876, 0.952108, -0.745791, 2.376802),
    "qwen3": (1.612111, 0.553761, 1.712531, -0.545126),
}
# Likewise its inverse frequencies.
TRANSFORMERS_FREQUENCIES = {
    "llama-llama3": (1, 0.193922745, 0.0273441373, 9.11583e-4, 1.767767e-4, 3.428102e-5, 6.64787e-6, 1.289173e-6),
    "llama-yarn": (1, 0.237170825, 0.05, 0.00790569415, 0.0025, 7.90569415e-4, 2.5e-4, 7.90569415e-5),
    "qwen2-yarn": (1, 0.316227766, 0.1, 0.0197642354, 0.0025, 7.90569415e-4, 2.5e-4, 7.90569415e-5),
}


@pytest.fixture(scope="module")
def weights_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Array]]:
    folder = tmp_path_factory.mktemp("tiny")
    return {name: load_weights(write_tiny(folder / f"{name}.gguf", spec)) for name, spec in TINY_SPECS.items()}


def test_rms_norm_worked_value() -> None:
    assert_allclose(rms_norm(np.array([1.0, 2, 3, 4]), np.ones(4), 0.0), 0.365148 * np.arange(1, 5), rtol=2e-6)


def test_rope_speeds_worked_value() -> None:
    spec = replace(TINY_SPECS["llama-mha"], n_rot=4, head_dim=4)
    assert_allclose(rope_frequencies(spec, {}), [1, 0.01], rtol=1e-15)


@pytest.mark.parametrize(
    ("query", "keys", "values", "weights", "out"),
    [
        ([1, 1, 0, 0], [[1, 0, 0, 0], [0, 1, 0, 0]], [[1, 2, 0, 0], [3, 4, 0, 0]], [0.5, 0.5], [2, 3, 0, 0]),
        (
            [1, 0, 0, 0],
            [[1, 0, 0, 0], [0, 1, 0, 0]],
            [[1, 2, 0, 0], [3, 4, 0, 0]],
            [0.62246, 0.37754],
            [0.62246 + 3 * 0.37754, 2 * 0.62246 + 4 * 0.37754, 0, 0],
        ),
        (
            [0, 1, 1, 0],
            [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]],
            [[1, 2, 0, 0], [3, 4, 0, 0], [5, 0, 0, 0]],
            [0.23270, 0.38365, 0.38365],
            [0.23270 + 8 * 0.38365, 2 * 0.23270 + 4 * 0.38365, 0, 0],
        ),
    ],
)
def test_attention_worked_values(
    query: list[float], keys: list[list[float]], values: list[list[float]], weights: list[float], out: list[float]
) -> None:
    q, k, v = np.array(query, float), np.array(keys, float), np.array(values, float)
    assert_allclose(softmax(k @ q / 2), weights, atol=5e-6)
    assert_allclose(attend(q, k, v), out, atol=5e-5)


def test_rope_styles_pair_other_dimensions() -> None:
    x = np.array([[1.0, 0, 0, 0, 5, 6]])
    frequencies = np.array([0.5, 0.1])
    cos, sin = np.cos(1.5), np.sin(1.5)
    assert_allclose(rotate(x, 3, frequencies, RopeStyle.INTERLEAVED), [[cos, sin, 0, 0, 5, 6]], atol=1e-15)
    assert_allclose(rotate(x, 3, frequencies, RopeStyle.NON_INTERLEAVED), [[cos, 0, sin, 0, 5, 6]], atol=1e-15)
    assert_allclose(rotate(x, 3, frequencies, RopeStyle.INTERLEAVED, 2.0), [[2 * cos, 2 * sin, 0, 0, 5, 6]], atol=1e-15)


@pytest.mark.parametrize("style", RopeStyle)
def test_scores_depend_on_relative_positions_only(style: RopeStyle) -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 16))
    frequencies = rope_frequencies(TINY_SPECS["llama-mha"], {})

    def score(query_position: int, key_position: int) -> float:
        rotated = rotate(q, query_position, frequencies, style), rotate(k, key_position, frequencies, style)
        return float((rotated[0] * rotated[1]).sum())

    assert_allclose(score(1007, 1002), score(7, 2), rtol=1e-10)
    assert abs(score(7, 3) - score(7, 2)) > 1e-3


@pytest.mark.parametrize("name", TRANSFORMERS_FREQUENCIES)
def test_scaled_frequencies_are_those_of_transformers(name: str, weights_of: dict[str, dict[str, Array]]) -> None:
    frequencies = rope_frequencies(TINY_SPECS[name], weights_of[name])
    assert_allclose(frequencies, TRANSFORMERS_FREQUENCIES[name], rtol=3e-7)


@pytest.mark.parametrize("name", TRANSFORMERS_LOGITS)
def test_logits_are_those_of_transformers(name: str, weights_of: dict[str, dict[str, Array]]) -> None:
    logits = plain_forward(TINY_SPECS[name], weights_of[name], TOKENS)
    assert_allclose(logits[-1, :4], TRANSFORMERS_LOGITS[name], atol=1e-6)


@pytest.mark.parametrize("name", TINY_SPECS)
def test_a_token_changes_no_earlier_logits(name: str, weights_of: dict[str, dict[str, Array]]) -> None:
    spec, weights = TINY_SPECS[name], weights_of[name]
    logits = plain_forward(spec, weights, TOKENS)
    changed = plain_forward(spec, weights, [*TOKENS[:6], 290, *TOKENS[7:]])
    assert_allclose(changed[:6], logits[:6], rtol=1e-12, atol=1e-12)
    assert (np.abs(changed[6:] - logits[6:]).max(axis=1) > 1e-3).all()
    assert_allclose(plain_forward(spec, weights, TOKENS[:6]), logits[:6], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", TINY_SPECS)
def test_logits_spread_and_attention_is_far_from_uniform(name: str, weights_of: dict[str, dict[str, Array]]) -> None:
    spec, weights = TINY_SPECS[name], weights_of[name]
    logits = plain_forward(spec, weights, TOKENS)
    assert 1 < logits.std() < 3
    without_queries = {key: value * (0 if "attn_q." in key else 1) for key, value in weights.items()}
    assert np.abs(plain_forward(spec, without_queries, TOKENS) - logits)[4:].mean() > 0.5


def test_every_query_head_reads_its_own_kv_head(weights_of: dict[str, dict[str, Array]]) -> None:
    """The same logits come from a model whose KV heads are written out once for each query head."""
    spec, weights = TINY_SPECS["llama-gqa"], weights_of["llama-gqa"]
    repeated = dict(weights)
    for name in weights:
        if name.endswith(("attn_k.weight", "attn_v.weight")):
            heads = weights[name].reshape(spec.n_kv_heads, spec.head_dim, spec.n_embd)
            repeated[name] = heads[[0, 0, 1, 1]].reshape(-1, spec.n_embd)
    expected = plain_forward(replace(spec, n_kv_heads=4), repeated, TOKENS)
    assert_allclose(plain_forward(spec, weights, TOKENS), expected, rtol=1e-11, atol=1e-12)


def test_linear_scaling_is_the_same_by_metadata_and_by_tensor(weights_of: dict[str, dict[str, Array]]) -> None:
    by_metadata = plain_forward(TINY_SPECS["llama-linear"], weights_of["llama-linear"], TOKENS)
    by_tensor = plain_forward(TINY_SPECS["llama-linear-tensor"], weights_of["llama-linear-tensor"], TOKENS)
    assert_array_equal(by_metadata, by_tensor)


def test_hidden_states_are_the_embedding_and_one_for_each_layer(weights_of: dict[str, dict[str, Array]]) -> None:
    spec, weights = TINY_SPECS["llama-gqa"], weights_of["llama-gqa"]
    states = plain_hidden_states(spec, weights, TOKENS)
    assert [state.shape for state in states] == [(12, spec.n_embd)] * 4
    assert_array_equal(states[0], weights["token_embd.weight"][TOKENS])


@pytest.mark.parametrize("name", ["llama-mha", "qwen2-tied", "qwen3"])
def test_greedy_follows_the_likeliest_token(name: str, weights_of: dict[str, dict[str, Array]]) -> None:
    spec, weights = TINY_SPECS[name], weights_of[name]
    tokens = greedy(spec, weights, TOKENS, 10)
    logits = plain_forward(spec, weights, [*TOKENS, *tokens[:-1]])
    assert tokens == logits[len(TOKENS) - 1 :].argmax(axis=1).tolist()
    assert len(set(tokens)) >= 5


@pytest.mark.parametrize("name", TINY_SPECS)
def test_files_hold_the_tensors_of_their_spec(name: str, tmp_path: Path) -> None:
    spec = TINY_SPECS[name]
    reader = gguf.GGUFReader(write_tiny(tmp_path / "model.gguf", spec))
    shapes = {tensor.name: tuple(tensor.shape.tolist()[::-1]) for tensor in reader.tensors}
    assert shapes == tensor_shapes(spec)
    assert ("output.weight" in shapes) is not spec.tied
    for tensor in reader.tensors:
        stem, suffix = tensor.name.rsplit(".", 1)
        is_matrix = suffix == "weight" and len(tensor.shape) == 2
        assert tensor.tensor_type == (spec.type_of(stem) if is_matrix else gguf.GGMLQuantizationType.F32)
    assert reader.fields["general.architecture"].contents() == spec.architecture


def _architecture_keys(path: Path, architecture: str) -> dict[str, object]:
    prefix = f"{architecture}."
    fields = gguf.GGUFReader(path).fields
    return {key.removeprefix(prefix): field.contents() for key, field in fields.items() if key.startswith(prefix)}


def test_metadata_is_what_converters_write(tmp_path: Path) -> None:
    common = {"block_count": 2, "context_length": 1024, "embedding_length": 64, "feed_forward_length": 96}
    path = write_tiny(tmp_path / "model.gguf", TINY_SPECS["qwen2-yarn"])
    assert _architecture_keys(path, "qwen2") == {
        **common,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-6, rel=1e-6),
        "rope.freq_base": 10_000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 256,
        "rope.scaling.yarn_beta_fast": 4.0,
        "rope.scaling.yarn_beta_slow": 0.5,
    }
    path = write_tiny(tmp_path / "model.gguf", replace(TINY_SPECS["llama-value-dim"], n_ctx=1024))
    assert _architecture_keys(path, "llama") == {
        **common,
        "vocab_size": 300,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 24,
        "attention.layer_norm_rms_epsilon": pytest.approx(1e-5, rel=1e-6),
        "rope.dimension_count": 16,
        "rope.freq_base": 10_000.0,
    }


def test_keys_can_be_left_out(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "model.gguf", TINY_SPECS["llama-mha-no-kv-count"])
    keys = _architecture_keys(path, "llama")
    assert "attention.head_count" in keys
    assert "attention.head_count_kv" not in keys


def test_the_same_spec_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    spec = TINY_SPECS["llama-k-quants"]
    first = write_tiny(tmp_path / "a.gguf", spec).read_bytes()
    assert write_tiny(tmp_path / "b.gguf", spec).read_bytes() == first
    assert write_tiny(tmp_path / "c.gguf", replace(spec, seed=99)).read_bytes() != first


def test_weight_types_may_differ_by_layer_and_go_back_to_float32() -> None:
    float32, q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0
    spec = replace(TINY_SPECS["llama-q8_0"], weight_types=(("attn_q", float32), ("blk.1.attn_q", q8_0)))
    assert [spec.type_of(f"blk.{layer}.attn_q") for layer in range(2)] == [float32, q8_0]
    assert spec.type_of("blk.0.attn_k") == q8_0


def test_the_tokenizer_is_whole_and_the_template_renders(tmp_path: Path) -> None:
    fields = gguf.GGUFReader(write_tiny(tmp_path / "model.gguf", TINY_SPECS["qwen2"])).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    assert len(tokens) == len(set(tokens)) == 300
    assert [tokens[byte] for byte in b"\x00 a\n\xff"] == ["Ā", "Ġ", "a", "Ċ", "ÿ"]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[(a, b) for a, b in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = "hello world, and naïve 🙂\n"
    encoded = tokenizer.encode(text)
    assert encoded.tokens[:2] == ["hello", "Ġworld"]
    assert tokenizer.decode(encoded.ids) == text

    types = fields["tokenizer.ggml.token_type"].contents()
    eos, bos = fields["tokenizer.ggml.eos_token_id"].contents(), fields["tokenizer.ggml.bos_token_id"].contents()
    assert [tokens[eos], tokens[bos]] == ["<|im_end|>", "<|endoftext|>"]
    assert {tokens[i] for i, kind in enumerate(types) if kind == gguf.TokenType.CONTROL} == {
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    }
    template = jinja2.Template(fields["tokenizer.chat_template"].contents())
    rendered = template.render(messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_broken_files_are_broken_as_named(tmp_path: Path) -> None:
    spec, path = TINY_SPECS["llama-mha"], tmp_path / "model.gguf"

    reader = gguf.GGUFReader(tiny_models.write_vocabulary_only(path, spec))
    assert len(reader.tensors) == 0
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 300

    tiny_models.write_unknown_architecture(path, "zebra")
    assert _architecture_keys(path, "zebra")["block_count"] == 2

    tiny_models.write_missing_tensor(path, spec, "blk.1.ffn_up.weight")
    assert load_weights(path).keys() == tensor_shapes(spec).keys() - {"blk.1.ffn_up.weight"}

    tiny_models.write_misshapen_tensor(path, spec, "blk.0.attn_k.weight", (48, 64))
    assert load_weights(path)["blk.0.attn_k.weight"].shape == (48, 64)
    with pytest.raises(KeyError):
        tiny_models.write_misshapen_tensor(path, spec, "no.such.weight", (48, 64))
