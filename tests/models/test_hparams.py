"""Hyper-parameters: read as files have them, and refused by name where they can't be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from edited_gguf import edited
from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFValueType, TypedValue, open_gguf
from minfer.models import HParams, declare_graph
from minfer.models.hparams import read_hparams
from minfer.models.rope_scaling import RopeScaling
from tiny_models import TINY_SPECS, RopeScalingKind, write_vocabulary_only

TinyPath = Callable[[str], Path]

SCALINGS = {
    RopeScalingKind.LINEAR: RopeScaling.LINEAR,
    RopeScalingKind.YARN: RopeScaling.YARN,
}


def read(path: Path, architecture: str = "llama") -> HParams:
    with open_gguf(path) as file:
        return read_hparams(file, architecture)


@pytest.fixture
def with_keys(tiny_path: TinyPath, tmp_path: Path) -> Callable[..., HParams]:
    """The hyper-parameters of `llama-gqa` (n_embd 64, 4 heads, 2 KV heads) with other keys, `None` for none."""

    def reading(changes: dict[str, object]) -> HParams:
        metadata = {f"llama.{key}": value for key, value in changes.items()}
        return read(edited(tiny_path("llama-gqa"), tmp_path / "edited.gguf", metadata))

    return reading


@pytest.mark.parametrize("name", TINY_SPECS)
def test_every_number_of_a_file(name: str, tiny_path: TinyPath) -> None:
    spec = TINY_SPECS[name]
    hparams = read(tiny_path(name), spec.architecture)
    for field in ("architecture", "n_layers", "n_embd", "n_heads", "head_dim", "value_dim", "n_ff", "n_vocab"):
        assert getattr(hparams, field) == getattr(spec, field)
    assert hparams.n_kv_heads == (spec.n_heads if name == "llama-mha-no-kv-count" else spec.n_kv_heads)
    assert hparams.n_ctx_train == spec.n_ctx
    assert hparams.norm_eps == spec.norm_eps
    assert hparams.window is None
    rope = hparams.rope
    assert (rope.n_rot, rope.freq_base) == (spec.n_rot, spec.freq_base)
    assert rope.scaling is SCALINGS.get(spec.rope_scaling.kind, RopeScaling.NONE)


def test_what_is_left_out_has_its_usual_value(with_keys: Callable[..., HParams]) -> None:
    hparams = with_keys({"attention.head_count_kv": None, "rope.dimension_count": None, "rope.freq_base": None})
    assert hparams.n_kv_heads == 4
    assert hparams.rope.n_rot == 16
    assert hparams.rope.freq_base == 10_000


def test_widths_of_keys_and_values_are_independent(with_keys: Callable[..., HParams]) -> None:
    """Each is n_embd / n_heads where it is left out."""
    hparams = with_keys({"attention.key_length": 24, "rope.dimension_count": None})
    assert (hparams.head_dim, hparams.value_dim, hparams.rope.n_rot) == (24, 16, 24)
    hparams = with_keys({"attention.value_length": 8})
    assert (hparams.head_dim, hparams.value_dim) == (16, 8)


@pytest.mark.parametrize(("value", "window"), [(0, None), (7, 7)])
def test_a_sliding_window(value: int, window: int | None, with_keys: Callable[..., HParams]) -> None:
    assert with_keys({"attention.sliding_window": value}).window == window


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
def test_a_missing_key_is_named(key: str, with_keys: Callable[..., HParams]) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{key}") + ".*missing"):
        with_keys({key: None})


@pytest.mark.parametrize(
    ("key", "value", "met"),
    [
        ("block_count", 2.0, "FLOAT32"),
        ("embedding_length", "64", "STRING"),
        ("attention.head_count", [4, 4], "ARRAY"),
        ("attention.head_count_kv", [2, 2], "ARRAY"),
        ("feed_forward_length", [96, 96], "ARRAY"),
        ("context_length", True, "BOOL"),
        ("attention.layer_norm_rms_epsilon", "1e-5", "STRING"),
        ("attention.key_length", 16.0, "FLOAT32"),
        ("attention.sliding_window", "8", "STRING"),
        ("rope.freq_base", "10000", "STRING"),
        ("rope.dimension_count", 16.0, "FLOAT32"),
        ("rope.scaling.type", 1, "UINT32"),
    ],
)
def test_a_key_of_the_wrong_type_is_named(key: str, value: object, met: str, with_keys: Callable[..., HParams]) -> None:
    with pytest.raises(ModelError, match=re.escape(f"llama.{key}") + f".*{met}"):
        with_keys({key: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": 0}, "llama.block_count is 0, and must be at least 1"),
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
def test_numbers_that_can_not_be(changes: dict[str, object], message: str, with_keys: Callable[..., HParams]) -> None:
    with pytest.raises(ModelError, match=re.escape(message)):
        with_keys(changes)


REFUSED: list[tuple[str, object, str]] = [
    ("expert_count", 8, "a mixture of experts"),
    ("use_parallel_residual", True, "parallel attention"),
    ("attention.causal", False, "attention that sees later tokens"),
    ("attention.clamp_kqv", 8.0, "clamping of q, k and v"),
    ("attention.max_alibi_bias", 8.0, "ALiBi"),
    ("attention.scale", 0.5, "an attention scale"),
    ("attention.output_scale", 0.5, "a scale of attention's output"),
    ("attention.temperature_scale", 0.1, "an attention scale that changes with the position"),
    ("attention.sliding_window_pattern", [True, False], "a sliding window in some of the layers"),
    ("attention.sliding_window_pattern", 6, "a sliding window in some of the layers"),
    ("attn_logit_softcapping", 50.0, "soft-capping of attention"),
    ("final_logit_softcapping", 30.0, "soft-capping of logits"),
    ("logit_scale", 0.0625, "a logit scale"),
    ("embedding_scale", 12.0, "an embedding scale"),
    ("residual_scale", 0.22, "a residual scale"),
    ("rope.dimension_sections", [16, 24, 24, 0], "a rotation by several positions"),
    ("rope.scaling.alpha", 1000.0, "a rotary base that is scaled"),
    ("rope.scaling.yarn_log_multiplier", 0.1, "a YaRN magnitude"),
    ("rope.scaling.yarn_ext_factor", 0.0, "a YaRN extrapolation factor"),
    ("rope.scaling.yarn_attn_factor", 0.8, "a YaRN magnitude"),
    ("rope.scaling.type", "longrope", "llama.rope.scaling.type 'longrope'"),
    ("rope.scaling.type", "", "llama.rope.scaling.type ''"),
]


@pytest.mark.parametrize(("key", "value", "what"), REFUSED, ids=lambda x: str(x)[:30])
def test_what_is_not_supported_is_refused_by_name(
    key: str, value: object, what: str, with_keys: Callable[..., HParams]
) -> None:
    with pytest.raises(UnsupportedError, match="is not supported") as caught:
        with_keys({key: value})
    assert what in caught.value.what
    assert f"llama.{key}" in caught.value.what


def test_an_unknown_scaling_lists_those_there_are(with_keys: Callable[..., HParams]) -> None:
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
    ],
)
def test_a_key_that_asks_for_nothing_is_no_reason_to_refuse(
    key: str, value: object, with_keys: Callable[..., HParams]
) -> None:
    assert with_keys({key: value}) == with_keys({})


@pytest.mark.parametrize("value_type", [GGUFValueType.UINT8, GGUFValueType.INT32, GGUFValueType.UINT64])
def test_integers_of_any_width(value_type: GGUFValueType, with_keys: Callable[..., HParams]) -> None:
    assert with_keys({"attention.head_count_kv": TypedValue(value_type, 2)}) == with_keys({})


def test_a_file_without_a_model(tmp_path: Path) -> None:
    path = write_vocabulary_only(tmp_path / "vocabulary.gguf", TINY_SPECS["llama-gqa"])
    with pytest.raises(ModelError, match=r"no tensor token_embd\.weight: it holds no model, or only a vocabulary"):
        read(path)


def test_the_graph_is_declared_with_the_numbers(tiny_path: TinyPath) -> None:
    with open_gguf(tiny_path("qwen3")) as file:
        hparams, _ = declare_graph(file)
        assert hparams == read_hparams(file, "qwen3")
