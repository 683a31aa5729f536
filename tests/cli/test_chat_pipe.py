"""minfer chat over a pipe: a line is a message, stdout has the answers and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chain_model import END_THINK, THINK, write_chain
from chat_templates import CHATML, THINKING
from edited_gguf import edited


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of models: one answers `Yes`, one thinks before, and one does not end."""
    directory = tmp_path_factory.mktemp("models")
    write_chain(directory / "yes.gguf", list("Yes"), CHATML)
    write_chain(directory / "thinker.gguf", [THINK, *"hm", END_THINK, *"Yes"], THINKING)
    write_chain(directory / "endless.gguf", list("abc"), CHATML, repeats=True)
    return directory


def chat(cli, model: Path, *arguments: str, stdin: str | bytes, **environment: str):
    return cli("chat", "-m", model, *arguments, stdin=stdin, MINFER_BACKEND="reference", **environment)


def test_each_line_is_answered(cli, models: Path, tmp_path: Path) -> None:
    cache = {"MINFER_CACHE_DIR": str(tmp_path / "cache")}
    done = chat(cli, models / "yes.gguf", stdin="first\n\n  \nsecond\nthird without an end", **cache)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Yes\nYes\nYes\n", "")
    assert not (tmp_path / "cache" / "chats").exists()
    assert not (tmp_path / "cache" / "chat-history").exists()


def test_nothing_is_piped_in(cli, models: Path) -> None:
    done = chat(cli, models / "yes.gguf", stdin="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_only_the_answer_of_a_model_that_thinks(cli, models: Path) -> None:
    done = chat(cli, models / "thinker.gguf", stdin="first\nsecond\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Yes\nYes\n", "")


def test_commands_work_and_speak_on_stderr(cli, models: Path, tmp_path: Path) -> None:
    script = f"/set stop s\nfirst\n/stats\n/save {tmp_path}/x.chat\n/exit\nnever read\n"
    done = chat(cli, models / "yes.gguf", stdin=script)
    assert (done.returncode, done.stdout) == (0, "Ye\n")
    assert "context: " in done.stderr
    assert "never" not in done.stdout + done.stderr
    done = chat(cli, models / "yes.gguf", "--load", f"{tmp_path}/x.chat", stdin="/tokens\nsecond\n")
    assert (done.returncode, done.stdout) == (0, "Ye\n")
    assert "user: first" in done.stderr


def test_a_pipe_is_not_asked_whether_to_replace_a_file(cli, models: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = chat(cli, models / "yes.gguf", stdin=f"first\n/save {tmp_path}/notes.txt\ny\n")
    assert (done.returncode, done.stdout) == (1, "Yes\nYes\n")  # the y is a message
    assert "notes.txt: a file that is not a saved session stands there, and is left alone" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_several_lines_between_quotes(cli, models: Path) -> None:
    done = chat(cli, models / "yes.gguf", stdin='"""one\ntwo\n"""\n/tokens\n"""three\nfour')
    assert (done.returncode, done.stdout) == (0, "Yes\nYes\n")
    assert "user: one two" in done.stderr


def test_a_mistake_is_told_and_the_rest_goes_on(cli, models: Path) -> None:
    done = chat(cli, models / "yes.gguf", "--n-ctx", "100", stdin=f"/set top_k x\n{'x' * 200}\nfine\n")
    assert (done.returncode, done.stdout) == (1, "Yes\n")
    assert done.stderr.splitlines()[0] == "error: top_k is 'x'; it must be an integer"
    assert "which do not fit into the context of 100" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_no_text_is_refused(models: Path) -> None:
    command = [sys.executable, "-m", "minfer", "chat", "-m", str(models / "yes.gguf")]
    environment = {**os.environ, "MINFER_BACKEND": "reference"}
    done = subprocess.run(command, input=b"\xff\xfe\nfine\n", capture_output=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"Yes\n")
    assert b"stdin is not UTF-8 text" in done.stderr


def test_the_context_is_told_of(cli, models: Path) -> None:
    options = ("--n-ctx", "100", "--max-tokens", "40")
    done = chat(cli, models / "endless.gguf", *options, stdin="one\ntwo\n")
    assert done.returncode == 0
    assert "the model no longer sees the oldest turn" in done.stderr
    done = chat(cli, models / "endless.gguf", *options, "--no-context-shift", stdin="one\ntwo\nthree\n")
    assert done.returncode == 1
    assert "(stopped: the context of 100 tokens is full" in done.stderr
    assert "error: the conversation has 1" in done.stderr


def test_a_model_without_a_template_says_so_before_anything_is_asked(cli, models: Path) -> None:
    bare = edited(models / "yes.gguf", models / "bare.gguf", {"tokenizer.chat_template": None})
    done = chat(cli, bare, stdin="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the model has no chat template" in done.stderr
    assert "--chat-template" in done.stderr


def test_ctrl_c_ends_a_piped_chat_and_shows_what_there_is(models: Path) -> None:
    command = [sys.executable, "-m", "minfer", "chat", "-m", str(models / "endless.gguf")]
    environment = {**os.environ, "MINFER_BACKEND": "reference"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"go\nmore\n")
        process.stdin.flush()
        assert process.stdout.read(3) == b"abc"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert out.endswith(b"\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--continue",), "there is no earlier conversation with this model"),
        (("--load", "nothing"), "there is no saved conversation 'nothing'; none have been saved yet"),
        (("--load", "./nothing.chat"), "nothing.chat: it can't be read: No such file or directory"),
        (("--load", "text.chat"), "text.chat: it is no saved session"),
        (("--load", "x", "--continue"), "--load and --continue each name a conversation"),
        (("--temperature", "-1"), "temperature is -1.0"),
        (("--max-tokens", "0"), "--max-tokens must be an integer of at least 1"),
    ],
)
def test_bad_arguments(cli, models: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "text.chat").write_text("hello")
    cache = {"MINFER_CACHE_DIR": str(tmp_path / "cache")}
    done = chat(cli, models / "yes.gguf", *arguments, stdin="hello\n", **cache)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_chat_template_may_be_given(cli, models: Path) -> None:
    bare = edited(models / "yes.gguf", models / "templateless.gguf", {"tokenizer.chat_template": None})
    given = models / "given.jinja"
    given.write_text(CHATML, encoding="utf-8")
    want = chat(cli, models / "yes.gguf", stdin="hello\n")
    for template in (given, "chatml"):
        done = chat(cli, bare, "--chat-template", str(template), stdin="hello\n")
        assert (done.returncode, done.stdout) == (0, want.stdout)
    done = chat(cli, bare, "--chat-template", "chatlm", stdin="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "none of the known names: chatml, " in done.stderr
