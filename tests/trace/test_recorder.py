"""MINFER_TRACE: every node of every step, as JSON lines that Perfetto opens too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minfer
from minfer.errors import SettingsError
from minfer.trace import statistics
from tiny_load import tiny_path


def events(path: Path) -> list[dict[str, Any]]:
    first, *lines = path.read_text().splitlines()
    assert first == "["
    return [json.loads(line) for line in lines]


def test_every_node_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace.json"
    monkeypatch.setenv("MINFER_TRACE", str(trace))
    with minfer.load(tiny_path(tmp_path)) as model:
        n_nodes = len(model._runtime._plan._graph.nodes)
        model.generate([1, 2, 3], max_tokens=2, temperature=0, ignore_eos=True)
    lines = events(trace)
    assert len(lines) == 2 * n_nodes
    assert {line["args"]["step"] for line in lines} == {0, 1}
    (logits,) = (line for line in lines if line["name"] == "output" and line["args"]["step"] == 0)
    (output,) = logits["args"]["outputs"]
    assert (logits["cat"], logits["ph"], output["shape"], output["n_nan"]) == ("MatMul", "X", [1, 300], 0)
    assert output["min"] < output["mean"] < output["max"]
    assert logits["dur"] > 0
    assert {line["args"]["layer"] for line in lines} == {None, 0, 1, 2}
    starts = [line["ts"] for line in lines]
    assert starts == sorted(starts)


def test_numbers_of_an_array() -> None:
    got = statistics(np.array([[3.0, -4.0]], np.float32))
    assert got == {"shape": [1, 2], "min": -4.0, "max": 3.0, "mean": -0.5, "rms": np.sqrt(12.5), "n_nan": 0}


def test_nan_and_infinity_are_valid_json() -> None:
    got = statistics(np.array([np.nan, 1.0, np.inf], np.float32))
    assert (got["min"], got["max"], got["n_nan"]) == (1.0, None, 1)
    assert "NaN" not in json.dumps(got)
    assert statistics(np.array([np.nan]))["mean"] is None
    assert statistics(np.zeros((0, 3), np.float32))["rms"] is None


def test_a_trace_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_TRACE", str(tmp_path / "no" / "trace.json"))
    with pytest.raises(SettingsError, match="MINFER_TRACE"):
        minfer.load(tiny_path(tmp_path))


def test_nothing_is_observed_when_it_is_off(tmp_path: Path) -> None:
    with minfer.load(tiny_path(tmp_path)) as model:
        assert model._runtime._observers == ()
