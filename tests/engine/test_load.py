"""Opening models, and every way in which it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

import minfer
from minfer.errors import (
    GGUFError,
    MinferError,
    MinferWarning,
    ModelError,
    ModelNotFoundError,
    ParameterError,
    UnsupportedError,
)
from tiny_load import tiny_path
from tiny_models import (
    TINY_SPECS,
    write_misshapen_tensor,
    write_missing_tensor,
    write_tiny,
    write_unknown_architecture,
    write_vocabulary_only,
)

SPEC = TINY_SPECS["llama-gqa"]


@pytest.mark.parametrize("name", TINY_SPECS)
def test_every_tiny_model_opens_and_answers(tmp_path: Path, name: str) -> None:
    with minfer.load(write_tiny(tmp_path / "m.gguf", TINY_SPECS[name])) as model:
        result = model.generate([{"role": "user", "content": "hello"}], max_tokens=3, temperature=0, ignore_eos=True)
        assert len(result.tokens) == 3
        assert model.detokenize(model.tokenize("hello world")) == "hello world"


def test_n_ctx(tiny_dir: Path) -> None:
    path = tiny_path(tiny_dir)
    with minfer.load(path) as model:
        assert model.n_ctx == SPEC.n_ctx
    with minfer.load(path, n_ctx=33) as model:
        assert model.n_ctx == 33
    with pytest.warns(MinferWarning, match="n_ctx 257 is more than the 256"), minfer.load(path, n_ctx=257) as model:
        assert model.logits([1] * 257).shape == (300,)


def test_the_default_context_is_bounded(tmp_path: Path) -> None:
    from dataclasses import replace

    with minfer.load(write_tiny(tmp_path / "m.gguf", replace(SPEC, n_ctx=1_000_000))) as model:
        assert model.n_ctx == 8192


@pytest.mark.parametrize("options", [{"n_ctx": 0}, {"n_ctx": 1.5}, {"threads": 0}, {"threads": True}])
def test_bad_numbers(tiny_dir: Path, options: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match=next(iter(options))):
        minfer.load(tiny_path(tiny_dir), **options)


def test_unsupported_names_list_what_there_is(tiny_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"cache type 'q4_0'.*f32, f16, q8_0"):
        minfer.load(tiny_path(tiny_dir), cache_type="q4_0")
    with pytest.raises(UnsupportedError, match=r"backend 'gpu'.*reference"):
        minfer.load(tiny_path(tiny_dir), backend="gpu")
    with pytest.raises(UnsupportedError, match=r"architecture 'aardvark'.*llama, qwen2, qwen3"):
        minfer.load(write_unknown_architecture(tmp_path / "m.gguf"))
    with pytest.raises(UnsupportedError, match="cache type q8_0 for keys of width 16"):
        minfer.load(tiny_path(tiny_dir), cache_type="q8_0")


def test_the_backend_of_the_environment(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_BACKEND", "abacus")
    with pytest.raises(UnsupportedError, match="backend 'abacus'"):
        minfer.load(tiny_path(tiny_dir))
    with minfer.load(tiny_path(tiny_dir), backend="reference") as model:
        assert model.n_vocab == 300


def test_models_that_do_not_fit_together(tmp_path: Path) -> None:
    missing = write_missing_tensor(tmp_path / "a.gguf", SPEC, "blk.1.ffn_up.weight")
    with pytest.raises(ModelError, match=r"no tensor blk\.1\.ffn_up\.weight"):
        minfer.load(missing)
    misshapen = write_misshapen_tensor(tmp_path / "b.gguf", SPEC, "blk.0.attn_norm.weight", (63,))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_norm\.weight is \[63\], and the metadata make it \[64\]"):
        minfer.load(misshapen)
    with pytest.raises(ModelError, match="only a vocabulary"):
        minfer.load(write_vocabulary_only(tmp_path / "c.gguf", SPEC))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    text = tmp_path / "notes.gguf"
    text.write_text("Dear diary, today I renamed a text file.\n" * 10)
    with pytest.raises(GGUFError, match="not a GGUF file"):
        minfer.load(text)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(GGUFError, match="empty"):
        minfer.load(empty)
    whole = write_tiny(tmp_path / "whole.gguf", SPEC).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(GGUFError):
        minfer.load(cut)
    with pytest.raises(ModelNotFoundError):
        minfer.load(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no model"):
        minfer.load(tmp_path / "nowhere.gguf")


def test_a_failed_load_closes_the_file(tmp_path: Path) -> None:
    path = write_missing_tensor(tmp_path / "a.gguf", SPEC, "blk.1.ffn_up.weight")
    with pytest.raises(MinferError):
        minfer.load(path)
    path.unlink()
    assert not path.exists()


def test_a_tokenizer_alone(tmp_path: Path, tiny_dir: Path) -> None:
    alone = minfer.load_tokenizer(write_vocabulary_only(tmp_path / "v.gguf", SPEC))
    with minfer.load(tiny_path(tiny_dir)) as model:
        assert alone.tokenize("hello world") == model.tokenize("hello world")
    rendered = alone.apply_template([{"role": "user", "content": "hi"}])
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert alone.detokenize(alone.tokenize("hello")) == "hello"


def test_a_misspelt_setting_is_noticed(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_BACKND", "reference")
    with pytest.raises(MinferError, match="MINFER_BACKND"):
        minfer.load(tiny_path(tiny_dir))


@pytest.mark.parametrize("n_sequences", [1, 6])
def test_the_cache_has_room_for_so_many_sequences(tiny_dir: Path, n_sequences: int) -> None:
    with minfer.load(tiny_path(tiny_dir), n_ctx=128, n_sequences=n_sequences) as model:
        assert model._runtime.cache_usage().n_pages == 2 * n_sequences


def test_a_cache_for_no_sequence_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(ParameterError, match="n_sequences must be an integer of at least 1, not 0"):
        minfer.load(tiny_path(tiny_dir), n_sequences=0)
