"""What is mistaken, misspelt or written as other engines want it: each gets an answer that a newcomer can use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minfer
from minfer.cli.console import UsageError
from minfer.cli.parameters import PARAMETERS, parse_value, token_limit
from minfer.cli.prompt_argument import check_verb
from minfer.cli.wording import as_options, with_context_option
from minfer.errors import ModelError
from minfer.gguf import open_gguf, write_gguf
from minfer.models import adapter_description
from minfer.quants import GGMLType


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter, as llama.cpp's converter writes one."""
    path = tmp_path_factory.mktemp("adapter") / "lora.gguf"
    shapes = {"blk.0.attn_q.weight.lora_a": (4, 64), "blk.0.attn_q.weight.lora_b": (64, 4)}
    tensors = [
        (name, shape, GGMLType.F32, np.zeros(shape, np.float32).view(np.uint8)) for name, shape in shapes.items()
    ]
    metadata = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 16.0,
    }
    write_gguf(path, metadata, tensors)
    return path


def test_an_adapter_is_said_to_be_one(cli, adapter: Path) -> None:
    done = cli("inspect", adapter)
    assert (done.returncode, done.stderr) == (0, "")
    assert "This is a LoRA adapter for llama models, rank 4: it changes a model, and is none by itself." in done.stdout
    assert "adapter.lora.alpha (float32) = 16.0" in done.stdout
    assert "blk.0.attn_q.weight.lora_a" in done.stdout


def test_an_adapter_is_no_model(adapter: Path, tiny: Path) -> None:
    with pytest.raises(
        ModelError, match=r"lora\.gguf is a LoRA adapter for llama models, rank 4: .* give the file of a"
    ):
        minfer.load(adapter, backend="reference")
    with open_gguf(tiny) as file:
        assert adapter_description(file) is None


@pytest.mark.skipif(os.name == "nt", reason="arguments are bytes on POSIX alone")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([b"caf\xe9"], "PROMPT"),
        ([b"hello", b"--system", b"caf\xe9"], "--system"),
        ([b"hello", b"--stop", b"a", b"--stop", b"caf\xe9"], "--stop"),
        ([b"hello", b"--dry-sequence-breaker", b"caf\xe9"], "--dry-sequence-breaker"),
    ],
)
def test_bytes_that_are_no_text(tiny: Path, arguments: list[bytes], named: str) -> None:
    command = [sys.executable, "-m", "minfer", "run", "-m", str(tiny), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
    told = " ".join(done.stderr.decode().replace("│", " ").split())
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"Invalid value for '{named}'" in told
    assert "it is not UTF-8 text: character 3 is the byte 0xE9. Does the terminal" in told


@pytest.mark.skipif(os.name == "nt", reason="arguments are bytes on POSIX alone")
def test_a_path_may_have_any_bytes(tiny: Path, tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/caf\xe9.gguf"
    os.symlink(tiny, path)
    for verb in ("inspect", "chat"):
        command = [sys.executable, "-m", "minfer", verb, path]
        environment = {**os.environ, "MINFER_BACKEND": "reference"}
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60, env=environment
        )
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("top_k is -2; it must be >= 0", "--top-k is -2; it must be >= 0"),
        ("dry_sequence_breakers holds ''", "--dry-sequence-breaker holds ''"),
        ("logit_bias[5] is nan", "--logit-bias[5] is nan"),
        ("n_ctx must be at least 1", "--n-ctx must be at least 1"),
        ("load the model with a larger n_ctx", "load the model with a larger --n-ctx"),
        ("drain_s is 0.0; it must be above 0", "--drain is 0.0; it must be above 0"),
        (
            "samplers names 'x'; the stages are penalties, top_k",
            "--samplers names 'x'; the stages are penalties, top_k",
        ),
        ("n_ctx_train is missing in /a/n_ctx.gguf", "n_ctx_train is missing in /a/n_ctx.gguf"),
        ("stop it", "stop it"),
    ],
)
def test_messages_name_options(message: str, told: str) -> None:
    assert as_options(message) == told


def test_a_chat_s_parameters_keep_their_names() -> None:
    assert with_context_option("top_k is -2; a larger n_ctx") == "top_k is -2; a larger --n-ctx"


def test_names_and_values_of_other_engines(cli, tiny: Path) -> None:
    options = ("run", "hello", "--raw", "-m", tiny, "--ignore-eos", "-n", "12", "--seed", "1")
    want = cli(*options, "--repetition-penalty", "1.5", "--top-k", "0")
    got = cli(*options, "--repeat-penalty", "1.5", "--top-k", "-1")
    assert (got.returncode, got.stdout) == (0, want.stdout)
    assert got.stdout != cli(*options).stdout
    done = cli(
        "run",
        "hello hello",
        "--raw",
        "-m",
        tiny,
        "--ignore-eos",
        "-n",
        "-1",
        "--n-ctx",
        "40",
        "--stats",
        "--seed",
        "-1",
    )
    assert "finish: length (context_end)" in done.stderr
    assert "seed: -1" not in done.stderr


def test_values_that_stand_for_others() -> None:
    assert parse_value(PARAMETERS["top_k"], ["-1"]) == 0
    assert parse_value(PARAMETERS["top_k"], ["-2"]) == -2  # which is refused elsewhere
    assert parse_value(PARAMETERS["seed"], ["-1"]) is None
    assert parse_value(PARAMETERS["penalty_window"], ["-1"]) == -1
    assert parse_value(PARAMETERS["samplers"], ["top-k, temperature"]) == ("top_k", "temperature")
    assert (token_limit(-1, 100), token_limit(5, 100), token_limit(-2, 100)) == (100, 5, -2)


def test_a_model_or_a_prompt_in_the_place_of_a_verb(cli, tiny: Path) -> None:
    done = cli(tiny)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tiny} is a model; what is meant is perhaps:\n  minfer chat {tiny}\n"
    with pytest.raises(UsageError, match=r"there is no command 'Why is it blue\?'.*\n  minfer run 'Why is it blue\?'"):
        check_verb("Why is it blue?")
    check_verb("rnu")
    assert "Did you mean 'run'?" in cli("rnu").stderr


def test_a_misspelt_pass(cli, tiny: Path) -> None:
    assert "there is no pass 'prun' (did you mean prune?)" in cli("inspect", tiny, "--graph", "--after", "prun").stderr
