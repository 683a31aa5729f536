"""minfer serve in a process of its own, as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from minfer.cli.main import app
from serve_running import TIMEOUT_S
from tiny_load import tiny_path

ASK = {"prompt": "hello", "max_tokens": 3, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_path(tmp_path_factory.mktemp("serve"))


@contextmanager
def command(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Runs `minfer serve`; a line on stderr says where."""
    process = subprocess.Popen(
        [sys.executable, "-m", "minfer", "serve", *map(str, arguments), "--port", "0", "--backend", "reference"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(TIMEOUT_S)
        assert process.stderr is not None
        process.stderr.close()


def address(process: subprocess.Popen[str]) -> str:
    """Where a server listens, once its model is loaded."""
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    url = next(line.split()[-1] for line in lines if line.startswith("listening on "))
    next(line for line in lines if line.endswith(" is ready\n"))
    return url


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops(tiny: Path, how: signal.Signals) -> None:
    with command(tiny, "--alias", "mine", "--n-ctx", "64") as process:
        with httpx.Client(base_url=address(process), timeout=TIMEOUT_S) as api:
            assert [model["id"] for model in api.get("/v1/models").json()["data"]] == [tiny.stem, "mine"]
            answer = api.post("/v1/completions", json={"model": "mine", **ASK}).json()
            assert answer["usage"]["completion_tokens"] == 3
        process.send_signal(how)
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert [line["path"] for line in lines] == ["/v1/models", "/v1/completions"]
    assert "hello" not in json.dumps(lines)


def test_keys_from_a_file(tiny: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\ntwo\n")
    with (
        command(tiny, "--api-key-file", keys, "--no-log-requests") as process,
        httpx.Client(base_url=address(process), timeout=TIMEOUT_S) as api,
    ):
        assert api.get("/v1/models").status_code == 401
        assert api.get("/v1/models", headers={"Authorization": "Bearer two"}).status_code == 200


def test_a_model_that_can_t_be_computed_as_asked(tiny: Path) -> None:
    with command(tiny, "--cache-type", "q5_1") as process:
        _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "error: cache type 'q5_1' is not supported" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("option", ["--parallel=0", "--parallel=65", "--queue=-1"])
def test_limits_out_of_range_are_refused_by_their_option_before_anything_is_loaded(tiny: Path, option: str) -> None:
    with command(tiny, option) as process:
        _, told = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert option.partition("=")[0] in told
    assert "listening" not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.gguf"], "error: no model 'nothing.gguf'"),
        (["TINY", "--drain", "0"], "error: --drain is 0.0"),
        (["TINY", "--api-key-file", "/nowhere"], "error: can't read the API keys in /nowhere"),
        (["TINY", "--api-key", "a b"], "error: an API key must be"),
        (["TINY", "--host", "203.0.113.1"], "error: can't listen on 203.0.113.1 port 8080"),
    ],
)
def test_what_can_t_be_served(tiny: Path, arguments: list[str], message: str) -> None:
    given = [str(tiny) if argument == "TINY" else argument for argument in arguments]
    done = CliRunner().invoke(app, ["serve", *given])
    assert done.exit_code == 1
    assert message in done.stderr


def test_other_verbs_do_not_wait_for_the_web() -> None:
    code = "import sys, minfer.cli.main; sys.exit(any(name in sys.modules for name in ('fastapi', 'uvicorn')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
