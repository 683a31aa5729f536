"""Whoever gets the default model for the first time is told what it is, once, and on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minfer.cli.console import ProgressBar
from minfer.cli.fetching import fetch_model
from minfer.hub import DEFAULT_MODEL, known_model, known_model_path


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache into which the default model "arrives" as an empty file."""
    monkeypatch.setenv("MINFER_CACHE_DIR", str(tmp_path))

    def resolve(name: str, *, cache_dir: Path, progress: Any) -> Path:
        path = known_model_path(known_model(name) or DEFAULT_MODEL, cache_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    monkeypatch.setattr("minfer.cli.fetching.resolve_model", resolve)
    return tmp_path


def test_one_line_when_the_default_model_is_fetched(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_model("default", ProgressBar()) == known_model_path(DEFAULT_MODEL, cache_dir)
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "SmolLM2-135M-Instruct is a small model, for a first try" in line
    assert "minfer models --available" in line
    better = [word for word in line.replace(",", " ").split() if known_model(word)]
    assert len(better) >= 2
    assert DEFAULT_MODEL.name not in better

    fetch_model("default", ProgressBar())
    assert capsys.readouterr() == ("", "")


def test_no_word_of_it_for_another_model(cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_model("qwen3-4b", ProgressBar())
    assert capsys.readouterr() == ("", "")
