"""Standard streams that are closed, full, or left behind by their reader: one line, an exit status, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chain_model import write_chain
from chat_templates import CHATML
from minfer.cli.streams import OutputError, repair_standard_streams

pytestmark = pytest.mark.skipif(os.name == "nt", reason="closes descriptors by a POSIX shell")
Shell = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def yes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `Yes`."""
    return write_chain(tmp_path_factory.mktemp("streams") / "yes.gguf", list("Yes"), CHATML)


@pytest.fixture
def shell(yes: Path, cache: Path, tmp_path: Path) -> Shell:
    """Runs a command line; in it, `minfer` is the command and `$YES` the model."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f'minfer() {{ "{sys.executable}" -m minfer "$@"; }}; {line}'],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env={
                **os.environ,
                "MINFER_CACHE_DIR": str(cache),
                "MINFER_BACKEND": "reference",
                "NO_COLOR": "1",
                "YES": str(yes),
            },
            timeout=60,
        )

    return run


VERBS = {
    "run": "minfer run hello -m $YES",
    "chat": "echo hello | minfer chat -m $YES",
    "inspect": "minfer inspect $YES",
    "models": "minfer models",
    "version": "minfer --version",
    "help": "minfer --help",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("target", "why"), [("&-", "it is closed"), ("/dev/full", "No space left on device")])
def test_an_answer_that_can_t_be_written_is_one_line_and_status_1(
    shell: Shell, verb: str, target: str, why: str
) -> None:
    done = shell(f"{VERBS[verb]} >{target}")
    assert (done.returncode, done.stderr) == (1, f"error: can't write to stdout: {why}\n")


@pytest.mark.parametrize("verb", ["run", "chat", "version"])
@pytest.mark.parametrize("target", ["&-", "/dev/full"])
def test_a_missing_stderr_costs_nothing(shell: Shell, verb: str, target: str) -> None:
    done = shell(f"{VERBS[verb]} {'--stats ' if verb == 'run' else ''}2>{target}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("minfer " if verb == "version" else "Yes\n")


def test_nothing_at_all_to_read_from_or_to_write_to(shell: Shell) -> None:
    assert shell("minfer run hello -m $YES <&- >&- 2>&-").returncode == 1
    assert shell("minfer run hello -m nowhere 2>&-").returncode == 1
    assert shell("minfer run hello --no-such-option 2>&-").returncode == 2


def test_a_closed_stdin_is_empty(shell: Shell) -> None:
    done = shell("minfer run hello -m $YES <&-")
    assert (done.returncode, done.stdout) == (0, "Yes\n")
    done = shell("minfer chat -m $YES <&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = shell("minfer run -m $YES 0>/dev/null")  # as `nohup` leaves it: there, and not to be read
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("error: the prompt is empty")


@pytest.mark.parametrize("verb", ["inspect", "help"])
def test_a_reader_that_has_gone_ends_it_quietly(yes: Path, cache: Path, verb: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before anything is written, so that no race decides
    arguments = ["inspect", str(yes)] if verb == "inspect" else ["--help"]
    command = [sys.executable, "-m", "minfer", *arguments]
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.PIPE,
            env={**os.environ, "MINFER_CACHE_DIR": str(cache)},
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_server_starts_without_any_stream(shell: Shell) -> None:
    done = shell("minfer serve nowhere <&- >&-")
    assert done.returncode == 1
    assert "error: no model 'nowhere'" in done.stderr


REPAIRED = """
import os, sys
from minfer.cli.streams import repair_standard_streams
repair_standard_streams()
file = open(sys.argv[1], "w")
print(file.fileno(), os.fstat(1).st_rdev == os.stat(os.devnull).st_rdev, sys.stdin.read() == "", flush=True, file=file)
print("nowhere", file=sys.stderr)
"""


def test_a_file_that_is_opened_never_takes_the_place_of_a_stream(tmp_path: Path) -> None:
    target = tmp_path / "file"
    line = f"exec {sys.executable} -c '{REPAIRED}' {target} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 0
    assert target.read_text() == "3 True True\n"


def test_the_first_failure_is_told_and_what_comes_after_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        repair_standard_streams()
        repaired = sys.stdout
        repaired.write("lost")
        with pytest.raises(OutputError, match="No space left on device"):
            repaired.flush()
        repaired.write("also lost")
        repaired.flush()


def test_a_pipe_that_does_not_block_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = subprocess.Popen(["wc", "-c"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdin is not None
    os.set_blocking(reader.stdin.fileno(), False)
    with os.fdopen(os.dup(reader.stdin.fileno()), "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        repair_standard_streams()
        sys.stdout.write("x" * 1_000_000)
        sys.stdout.flush()
    out, _ = reader.communicate(timeout=20)
    assert int(out) == 1_000_000
