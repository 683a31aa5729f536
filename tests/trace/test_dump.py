"""MINFER_DUMP_DIR, and the comparison of two dumps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minfer
from minfer.errors import SettingsError
from plain_forward import plain_hidden_states
from tiny_load import tiny_path
from tiny_models import TINY_SPECS, load_weights

COMPARE = Path(__file__).parents[2] / "scripts" / "compare-dumps"
TOKENS = [5, 6, 7, 8]


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "dump"
    monkeypatch.setenv("MINFER_DUMP_DIR", str(directory))
    with minfer.load(tiny_path(tmp_path), cache_type="f32") as model:
        model.generate(TOKENS, max_tokens=2, temperature=0, ignore_eos=True)
    return directory


def compare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COMPARE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_hidden_states_are_those_of_the_plain_forward_pass(dump: Path, tmp_path: Path) -> None:
    want = plain_hidden_states(TINY_SPECS["llama-gqa"], load_weights(tiny_path(tmp_path)), TOKENS)
    names = ["embedding", "layer-00", "layer-01", "layer-02"]
    assert sorted(path.name for path in dump.iterdir()) == ["step-0000", "step-0001"]
    want[-1] = want[-1][-1:]  # of the last layer, only what the logits are made of
    for name, array in zip(names, want, strict=True):
        np.testing.assert_allclose(np.load(dump / "step-0000" / f"{name}.npy"), array, atol=1e-5)
    assert np.load(dump / "step-0000" / "logits.npy").shape == (1, 300)
    assert np.load(dump / "step-0001" / "layer-02.npy").shape == (1, 64)


def test_equal_dumps(dump: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dump, tmp_path / "other")
    done = compare(dump, other)
    assert (done.returncode, done.stdout) == (0, "equal: 10 arrays\n")


def test_the_first_layer_that_differs_is_named(dump: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dump, tmp_path / "other")
    for name in ("layer-01", "layer-02"):
        path = other / "step-0000" / f"{name}.npy"
        array = np.load(path)
        array[-1, 3] += 0.5
        np.save(path, array)
    done = compare(dump, other)
    assert done.returncode == 1
    assert done.stdout.startswith("step-0000/layer-01 is the first to differ: 1 of 256 values; the worst at [3, 3]")
    assert compare(dump, other, "--tolerance", "1").returncode == 0


def test_nan_is_a_difference_unless_both_have_it(dump: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dump, tmp_path / "other")
    path = other / "step-0001" / "embedding.npy"
    array = np.load(path)
    array[0, 0] = np.nan
    np.save(path, array)
    assert compare(dump, other, "--tolerance", "100").stdout.startswith("step-0001/embedding is the first")
    assert compare(other, other).returncode == 0


def test_what_can_not_be_compared(dump: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = compare(dump, tmp_path / "empty")
    assert done.returncode == 2
    assert "holds no dump" in done.stderr


def test_an_earlier_dump_is_not_overwritten(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="already holds a dump"):
        minfer.load(tiny_path(tmp_path))
