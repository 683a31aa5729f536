"""Where a prompt comes from: the argument, what is piped in, both; and what is given in its place by mistake."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import minfer
from minfer.cli.console import UsageError
from minfer.cli.options import chosen_model
from minfer.cli.prompt_argument import check_prompt_argument
from minfer.cli.stdin import InputError, read_stdin, read_stdin_beside_prompt
from minfer.errors import ParameterError

GREEDY = ("--raw", "--temperature", "0", "--ignore-eos", "--max-tokens", "8")


@contextmanager
def stdin_from(descriptor: int) -> Iterator[None]:
    before = sys.stdin
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        sys.stdin = stream
        try:
            yield
        finally:
            sys.stdin = before


@pytest.mark.parametrize(
    ("piped", "whole"),
    [("a text\n", "a text\n\nhello"), ("one\ntwo\r\n\n", "one\ntwo\n\nhello"), (" \n", "hello"), ("", "hello")],
)
def test_what_is_piped_in_comes_before_the_prompt(cli, tiny: Path, piped: str, whole: str) -> None:
    with minfer.load(tiny) as model:
        want = model.generate(whole, max_tokens=8, temperature=0, ignore_eos=True)
    done = cli("run", "hello", "-m", tiny, *GREEDY, stdin=piped)
    assert (done.returncode, done.stdout) == (0, want.text.removesuffix("\n") + "\n")


def test_stdin_can_be_left_alone(cli, tiny: Path) -> None:
    alone = cli("run", "hello", "-m", tiny, *GREEDY)
    assert cli("run", "hello", "-m", tiny, *GREEDY, "--no-stdin", stdin="a text").stdout == alone.stdout
    assert cli("run", "hello", "-m", tiny, *GREEDY, "--stdin", stdin="a text").stdout != alone.stdout
    done = cli("run", "-m", tiny, "--no-stdin", stdin="a text")
    assert (done.returncode, done.stderr.partition(":")[2].partition(":")[0]) == (1, " there is no prompt")


def test_a_pipe_that_nobody_writes_to_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    with stdin_from(reader):
        assert read_stdin_beside_prompt(first_byte_s=0.01) == ""
    os.close(writer)
    told = capsys.readouterr().err
    assert "nothing has come on stdin yet, to put before the prompt; waiting 0.01 s for it" in told
    assert "warning: nothing came on stdin; the prompt is answered alone" in told


def test_a_pipe_that_is_written_to_is_read_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.write(writer, "é".encode())
    os.close(writer)
    with stdin_from(reader):
        assert read_stdin_beside_prompt(first_byte_s=0.01) == "é"
    assert capsys.readouterr().err == ""


def test_a_pipe_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    read = os.read

    def writes_when_empty(descriptor: int, n_bytes: int) -> bytes:
        try:
            return read(descriptor, n_bytes)
        except BlockingIOError:
            os.write(writer, b"late")
            os.close(writer)
            raise

    monkeypatch.setattr(os, "read", writes_when_empty)
    with stdin_from(reader):
        assert read_stdin() == "late"


def test_stdin_that_is_not_text_or_can_t_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"caf\xe9")
    os.close(writer)
    with stdin_from(reader), pytest.raises(ParameterError, match="stdin is not UTF-8 text: byte 3 is 0xE9"):
        read_stdin()

    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "read", fails)
    with open(os.devnull) as null:
        monkeypatch.setattr(sys, "stdin", null)
        with pytest.raises(InputError, match="can't read stdin: Input/output error"):
            read_stdin()


def test_a_program_s_own_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a text")))
    assert read_stdin_beside_prompt() == "a text"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["{tiny}"], 'minfer run --model {tiny} "PROMPT"'),
        (["{tiny}", "hello there"], "minfer run --model {tiny} 'hello there'"),
        (["{tiny}", "hello", "there"], "minfer run --model {tiny} 'hello there'"),
        (["mistral-7b.Q4_K_M.gguf"], 'minfer run --model mistral-7b.Q4_K_M.gguf "PROMPT"'),
        (["hf:owner/repo:file.gguf", "hello"], "minfer run --model hf:owner/repo:file.gguf hello"),
        (["default", "hello"], "minfer run --model default hello"),
        (["Why", "is", "it", "blue?"], "minfer run 'Why is it blue?'"),
    ],
)
def test_a_model_in_the_place_of_the_prompt(tiny: Path, arguments: list[str], meant: str) -> None:
    first, *more = [argument.format(tiny=tiny) for argument in arguments]
    with pytest.raises(UsageError) as caught:
        check_prompt_argument(first, more, model_is_given=False)
    assert str(caught.value).splitlines()[-1].strip() == meant.format(tiny=tiny)


def test_a_gguf_file_by_another_name_is_a_model_too(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(tiny.read_bytes()[:100])
    with pytest.raises(UsageError, match=r"model\.bin is a model"):
        check_prompt_argument(str(file), [], model_is_given=False)


@pytest.mark.parametrize("prompt", ["default", "What is in model.gguf", "hf: what is it?", "\0", "x" * 5000, "README"])
def test_prompts_are_prompts(prompt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README").write_text("text")
    monkeypatch.chdir(tmp_path)
    check_prompt_argument(prompt, [], model_is_given=False)


def test_beside_a_model_anything_is_a_prompt(tiny: Path) -> None:
    check_prompt_argument(str(tiny), [], model_is_given=True)


def test_the_command_says_so_and_exits_as_for_bad_usage(cli, tiny: Path) -> None:
    done = cli("run", tiny, "hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"\n  minfer run --model {tiny} hello\n")


@pytest.mark.parametrize("verb", ["inspect", "chat"])
def test_a_model_is_given_by_the_same_means_in_every_verb(cli, tiny: Path, verb: str) -> None:
    first, by_option = cli(verb, tiny), cli(verb, "-m", tiny)
    assert (first.returncode, first.stdout) == (0, by_option.stdout)
    done = cli(verb, tiny, "-m", "other")
    assert done.returncode == 2
    assert f"two models are given, {tiny} and --model other" in done.stderr


def test_the_model_that_is_chosen() -> None:
    assert chosen_model(None, None) == "default"
    assert chosen_model("a", None) == chosen_model(None, "a") == chosen_model("a", "a") == "a"
