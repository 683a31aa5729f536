"""The environment is read in one place, and misspelt names are noticed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from minfer.errors import SettingsError
from minfer.settings import NO_CACHE_DIR, read_settings

if sys.platform != "win32":
    import pwd


def test_nothing_set() -> None:
    settings = read_settings({"HOME": "/home/x", "XDG_CACHE_HOME": "/cache"})
    assert (settings.backend, settings.trace_path, settings.dump_dir) == (None, None, None)
    assert settings.cache_type is None
    assert settings.cache_dir.name == "minfer"


def test_everything_set() -> None:
    settings = read_settings(
        {
            "MINFER_CACHE_DIR": "/c",
            "MINFER_BACKEND": "reference",
            "MINFER_CACHE_TYPE": "q8_0",
            "MINFER_TRACE": "t.json",
            "MINFER_DUMP_DIR": "d",
        }
    )
    assert (settings.cache_dir, settings.backend, settings.cache_type) == (Path("/c"), "reference", "q8_0")
    assert (settings.trace_path, settings.dump_dir) == (Path("t.json"), Path("d"))


def test_empty_is_not_set() -> None:
    settings = read_settings({"MINFER_BACKEND": "", "MINFER_TRACE": "", "MINFER_CACHE_DIR": ""})
    assert (settings.backend, settings.trace_path) == (None, None)


def test_an_unknown_name() -> None:
    with pytest.raises(SettingsError, match=r"MINFER_THREDS; minfer reads MINFER_BACKEND"):
        read_settings({"MINFER_THREDS": "2"})
    with pytest.raises(SettingsError, match=r"MINFER_CACHEDIR \(did you mean MINFER_CACHE_DIR\?\); minfer reads"):
        read_settings({"MINFER_CACHEDIR": "/c"})


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the users' list of other systems")
def test_without_a_home_there_is_no_cache_and_nobody_s_directory_is_used_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOME")
    assert read_settings({}).cache_dir == Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "minfer")

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)  # a container's user that is a number
    cache_dir = read_settings({}).cache_dir
    assert cache_dir == NO_CACHE_DIR
    with pytest.raises(OSError, match="Not a directory"):
        cache_dir.mkdir(parents=True)
    assert read_settings({"MINFER_CACHE_DIR": "/c"}).cache_dir == Path("/c")


def test_a_home_that_no_shell_has_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert read_settings({"MINFER_CACHE_DIR": "~/models"}).cache_dir == Path("/home/x/models")


def test_only_settings_reads_the_environment() -> None:
    source = Path(__file__).parents[1] / "src" / "minfer"
    readers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    }
    # hub/pip.py hands the environment on to pip, with another directory for temporary files.
    assert readers == {"settings.py", "hub/pip.py"}
