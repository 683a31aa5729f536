"""The examples run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from real_models import default_model
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: str | Path, stdin: str = "") -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=3 * TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_openai_client(server: Running, engine: FakeEngine) -> None:
    assert run("openai_client.py", "Hello?", server.url).startswith("Sample 0 at temperature 0.7")
    assert engine.seen[0].sampling.repetition_penalty == 1.1


def test_streaming(server: Running) -> None:
    told = run("streaming.py", server.url)
    assert told.count("Sample 0") == 2
    assert "0 of them from the cache" in told


def test_batch(server: Running, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: str(len(request.prompt_tokens))
    lines = run("batch.py", server.url, stdin="one\ntwo two\n\nthree three three\n").splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["prompt"] for answer in answers] == ["one", "two two", "three three three"]
    assert [int(answer["answer"]) - int(answers[0]["answer"]) for answer in answers] == [0, 1, 2]


@pytest.mark.default_model
def test_async_app() -> None:
    lines = run("async_app.py", default_model()).splitlines()
    assert sorted(line.partition(".")[0] for line in lines if line.startswith("Name")) == [
        "Name a city",
        "Name a colour",
        "Name an animal",
    ]
