"""Configurations: read as files have them, and refused by name where they can't be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models
from edited_gguf import edited
from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFValueType, TypedValue, open_gguf
from minfer.models import ModelConfig, declare_graph, read_config
from minfer.models.config import Attention, RopeScalingKind
from tiny_models import TINY_SPECS, write_vocabulary_only

TinyPath = Callable[[str], Path]
Reading = Callable[..., ModelConfig]

SCALINGS = {
    tiny_models.RopeScalingKind.LINEAR: RopeScalingKind.LINEAR,
    tiny_models.RopeScalingKind.YARN: RopeScalingKind.YARN,
}


def read(path: Path) -> ModelConfig:
    with open_gguf(path) as file:
        return read_config(file)[0]


def attention_of(config: ModelConfig) -> Attention:
    """The attention of every layer, where all are alike."""
    (attention,) = {layer.mixer for layer in config.layers}
    return attention


@pytest.fixture
def with_keys(tiny_path: TinyPath, tmp_path: Path) -> Reading:
    """What `llama-gqa` (3 layers, n_embd 64, 4 heads, 2 KV heads) is with other keys, `None` for none."""

    def reading(changes: dict[str, object]) -> ModelConfig:
        metadata = {f"llama.{key}": value for key, value in changes.items()}
        return read(edited(tiny_path("llama-gqa"), tmp_path / "edited.gguf", metadata))

    return reading


@pytest.mark.parametrize("name", TINY_SPECS)
def test_every_number_of_a_file(name: str, tiny_path: TinyPath) -> None:
    spec = TINY_SPECS[name]
    config = read(tiny_path(name))
    for field in ("architecture", "n_layers", "n_embd", "n_vocab"):
        assert getattr(config, field) == getattr(spec, field)
    assert config.n_ctx_train == spec.n_ctx
    assert config.output_norm.eps == spec.norm_eps
    for layer in config.layers:
        assert (layer.feed_forward.n_ff, layer.norm.eps) == (spec.n_ff, spec.norm_eps)
    attention = attention_of(config)
    for field in ("n_heads", "head_dim", "value_dim"):
        assert getattr(attention, field) == getattr(spec, field)
    assert attention.n_kv_heads == (spec.n_heads if name == "llama-mha-no-kv-count" else spec.n_kv_heads)
    assert attention.window is None
    assert (attention.qk_norm is not None) == spec.qk_norm
    rope = attention.rope
    assert rope is not None
    assert (rope.n_rot, rope.base) == (spec.n_rot, spec.freq_base)
    assert rope.scaling.kind is SCALINGS.get(spec.rope_scaling.kind, RopeScalingKind.NONE)


def test_what_is_left_out_has_its_usual_value(with_keys: Reading) -> None:
    attention = attention_of(
        with_keys({"attention.head_count_kv": None, "rope.dimension_count": None, "rope.freq_base": None})
    )
    assert attention.n_kv_heads == 4
    assert attention.rope is not None
    assert (attention.rope.n_rot, attention.rope.base) == (16, 10_000)


def test_widths_of_keys_and_values_are_independent(with_keys: Reading) -> None:
    """Each is n_embd / n_heads where it is left out."""
    attention = attention_of(with_keys({"attention.key_length": 24, "rope.dimension_count": None}))
    assert attention.rope is not None
    assert (attention.head_dim, attention.value_dim, attention.rope.n_rot) == (24, 16, 24)
    attention = attention_of(with_keys({"attention.value_length": 8}))
    assert (attention.head_dim, attention.value_dim) == (16, 8)


@pytest.mark.parametrize(("value", "window"), [(0, None), (7, 7)])
def test_a_sliding_window(value: int, window: int | None, with_keys: Reading) -> None:
    assert attention_of(with_keys({"attention.sliding_window": value})).window == window


def test_numbers_of_each_layer(with_keys: Reading) -> None:
    config = with_keys(
        {
            "attention.head_count": [4, 2, 4],
            "attention.head_count_kv": [1, 2, 4],
            "attention.key_length": 16,
            "attention.value_length": 16,
            "feed_forward_length": [96, 32, 64],
        }
    )
    assert [(layer.mixer.n_heads, layer.mixer.n_kv_heads) for layer in config.layers] == [(4, 1), (2, 2), (4, 4)]
    assert [layer.feed_forward.n_ff for layer in config.layers] == [96, 32, 64]
    config = with_keys({"attention.head_count": [4, 2, 1], "attention.head_count_kv": None})
    assert [layer.mixer.n_kv_heads for layer in config.layers] == [4, 2, 1]
    assert [layer.mixer.head_dim for layer in config.layers] == [16, 32, 64]


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(key: str, with_keys: Reading) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{key}") + ".*missing"):
        with_keys({key: None})


@pytest.mark.parametrize(
    ("key", "value", "met"),
    [
        ("block_count", 2.0, "FLOAT32"),
        ("embedding_length", "64", "STRING"),
        ("attention.head_count", [4.0, 4.0, 4.0], "FLOAT32"),
        ("attention.key_length", [16, 16, 16], "ARRAY"),
        ("feed_forward_length", ["96"] * 3, "STRING"),
        ("feed_forward_length", "96", "STRING"),
        ("context_length", True, "BOOL"),
        ("attention.layer_norm_rms_epsilon", "1e-5", "STRING"),
        ("attention.key_length", 16.0, "FLOAT32"),
        ("attention.sliding_window", "8", "STRING"),
        ("rope.freq_base", "10000", "STRING"),
        ("rope.dimension_count", 16.0, "FLOAT32"),
        ("rope.scaling.type", 1, "UINT32"),
    ],
)
def test_a_key_of_the_wrong_type_is_named(key: str, value: object, met: str, with_keys: Reading) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{key}") + f".*{met}"):
        with_keys({key: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": 0}, "llama.block_count is 0, and must be at least 1"),
        ({"block_count": 2**31}, "llama.block_count is 2147483648, and the file has 30 tensors"),
        ({"feed_forward_length": [96, 96]}, "llama.feed_forward_length has 2 elements, and there are 3 layers"),
        ({"feed_forward_length": [96, 96, 0]}, "llama.feed_forward_length[2] is 0, and must be at least 1"),
        ({"attention.head_count_kv": [2, 3, 2]}, "4 query heads can't share 3 KV heads evenly"),
        ({"context_length": 0}, "llama.context_length is 0, and must be at least 1"),
        ({"feed_forward_length": 0}, "llama.feed_forward_length is 0"),
        ({"attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"attention.head_count_kv": 0}, "llama.attention.head_count_kv is 0"),
        ({"attention.key_length": 0}, "llama.attention.key_length is 0"),
        ({"attention.value_length": 0}, "llama.attention.value_length is 0"),
        ({"attention.head_count_kv": 3}, "4 query heads can't share 3 KV heads evenly (llama.attention.head_count_kv)"),
        ({"attention.head_count_kv": 8}, "4 query heads can't share 8 KV heads evenly"),
        ({"attention.head_count": 6}, "embedding_length 64 is not divisible by 6 heads, and there is no attention.key"),
        (
            {"attention.head_count": 6, "attention.key_length": 16},
            "embedding_length 64 is not divisible by 6 heads, and there is no attention.value_length",
        ),
        ({"attention.head_count": 128}, "embedding_length 64 is not divisible by 128 heads"),
        ({"embedding_length": 128}, "token_embd.weight is [300, 64], and should be [n_vocab, 128]"),
        ({"attention.layer_norm_rms_epsilon": -1e-5}, "llama.attention.layer_norm_rms_epsilon is -"),
        ({"attention.layer_norm_rms_epsilon": 1.5}, "llama.attention.layer_norm_rms_epsilon is 1.5"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "llama.attention.layer_norm_rms_epsilon is nan"),
        ({"attention.sliding_window": -4}, "llama.attention.sliding_window is -4"),
        ({"rope.dimension_count": 18}, "llama.rope.dimension_count is 18"),
        ({"rope.dimension_count": 7}, "llama.rope.dimension_count is 7"),
        ({"rope.dimension_count": 0}, "llama.rope.dimension_count is 0"),
        ({"rope.freq_base": 1.0}, "llama.rope.freq_base is 1.0, and must be a finite number above 1"),
        ({"rope.freq_base": float("inf")}, "llama.rope.freq_base is inf"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, "llama.rope.scaling.factor is 0.0"),
        ({"rope.scale_linear": -2.0}, "llama.rope.scaling.factor is -2.0"),
        ({"rope.scaling.original_context_length": 0}, "llama.rope.scaling.original_context_length is 0"),
        ({"rope.scaling.attn_factor": float("nan")}, "llama.rope.scaling.attn_factor is nan"),
        ({"rope.scaling.yarn_beta_slow": 0.0}, "llama.rope.scaling.yarn_beta_slow is 0.0"),
        ({"rope.scaling.yarn_beta_fast": 1.0}, "llama.rope.scaling.yarn_beta_fast is 1.0"),
        ({"rope.scaling.low_freq_factor": 0.0}, "llama.rope.scaling.low_freq_factor is 0.0"),
        ({"rope.scaling.high_freq_factor": 1.0}, "llama.rope.scaling.high_freq_factor is 1.0"),
        ({"rope.scaling.high_freq_factor": float("nan")}, "llama.rope.scaling.high_freq_factor is nan"),
    ],
)
def test_numbers_that_can_not_be(changes: dict[str, object], message: str, with_keys: Reading) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        with_keys(changes)


REFUSED: list[tuple[str, object]] = [
    ("expert_count", 8),
    ("use_parallel_residual", True),
    ("attention.causal", False),
    ("attention.clamp_kqv", 8.0),
    ("attention.max_alibi_bias", 8.0),
    ("attention.scale", 0.5),
    ("attention.output_scale", 0.5),
    ("attention.temperature_scale", 0.1),
    ("attention.sliding_window_pattern", [True, False]),
    ("attention.sliding_window_pattern", 6),
    ("attn_logit_softcapping", 50.0),
    ("final_logit_softcapping", 30.0),
    ("logit_scale", 0.0625),
    ("embedding_scale", 12.0),
    ("residual_scale", 0.22),
    ("rope.dimension_sections", [16, 24, 24, 0]),
    ("rope.scaling.alpha", 1000.0),
    ("rope.scaling.yarn_log_multiplier", 0.1),
    ("rope.scaling.yarn_ext_factor", 0.0),
    ("rope.scaling.yarn_attn_factor", 0.8),
    ("rope.scaling.type", "longrope"),
    ("rope.scaling.type", ""),
    ("a_key_that_nobody_has_heard_of", False),
]


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=lambda x: str(x)[:30])
def test_what_was_not_read_is_refused_by_name(key: str, value: object, with_keys: Reading) -> None:
    with pytest.raises(UnsupportedError, match="is not supported") as caught:
        with_keys({key: value})
    assert f"llama.{key}" in caught.value.what
    if not isinstance(value, list | float):
        assert repr(value) in caught.value.what


def test_all_that_was_not_read_is_counted(with_keys: Reading) -> None:
    with pytest.raises(UnsupportedError) as caught:
        with_keys({"expert_count": 8, "vocab_size": 300, "logit_scale": 1.0, "new": "x"})
    assert caught.value.what == "2 metadata keys of this llama file (llama.expert_count = 8, llama.new = 'x')"
    with pytest.raises(UnsupportedError) as caught:
        with_keys({f"new{i}": i for i in range(7)})
    assert caught.value.what.startswith("7 metadata keys of this llama file (llama.new0 = 0, llama.new1 = 1")
    assert caught.value.what.endswith("llama.new4 = 4, ...)")


def test_keys_of_other_prefixes_are_none_of_an_architectures_business(tiny_path: TinyPath, tmp_path: Path) -> None:
    metadata = {"llama4.expert_count": 8, "llamas": 3, "general.new": 1}
    assert read(edited(tiny_path("llama-gqa"), tmp_path / "other.gguf", metadata)) == read(tiny_path("llama-gqa"))


def test_what_was_read_is_told(tiny_path: TinyPath) -> None:
    """Keys that the file has, and not those whose default was taken."""
    with open_gguf(tiny_path("llama-gqa")) as file:
        _, keys = read_config(file)
        wanted = {key for key in file.metadata if key.startswith("llama.") and key != "llama.vocab_size"}
    assert set(keys) == wanted
    assert "llama.attention.head_count" in keys


def test_an_unknown_scaling_lists_those_there_are(with_keys: Reading) -> None:
    with pytest.raises(UnsupportedError) as caught:
        with_keys({"rope.scaling.type": "su"})
    assert caught.value.supported == ("none", "linear", "llama3", "yarn")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("attention.causal", True),
        ("attention.clamp_kqv", 0.0),
        ("attn_logit_softcapping", 0.0),
        ("logit_scale", 1.0),
        ("residual_scale", 1.0),
        ("use_parallel_residual", False),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.finetuned", True),
        ("vocab_size", 300),
        ("vocab_size", 7),
        ("pooling_type", 3),
        ("tensor_data_layout", "Meta AI original pth"),
        ("expert_used_count", 0),
    ],
)
def test_a_key_that_asks_for_nothing_is_no_reason_to_refuse(key: str, value: object, with_keys: Reading) -> None:
    assert with_keys({key: value}) == with_keys({})


@pytest.mark.parametrize("value_type", [GGUFValueType.UINT8, GGUFValueType.INT32, GGUFValueType.UINT64])
def test_integers_of_any_width(value_type: GGUFValueType, with_keys: Reading) -> None:
    assert with_keys({"attention.head_count_kv": TypedValue(value_type, 2)}) == with_keys({})


def test_a_file_without_a_model(tmp_path: Path) -> None:
    path = write_vocabulary_only(tmp_path / "vocabulary.gguf", TINY_SPECS["llama-gqa"])
    with pytest.raises(ModelError, match=r"no tensor token_embd\.weight: it holds no model, or only a vocabulary"):
        read(path)


def test_the_graph_is_declared_with_the_numbers(tiny_path: TinyPath) -> None:
    with open_gguf(tiny_path("qwen3")) as file:
        assert declare_graph(file)[0] == read_config(file)[0]
