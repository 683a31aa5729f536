"""The environment is read in one place, and misspelt names are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from minfer.errors import SettingsError
from minfer.settings import read_settings


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


def test_only_settings_reads_the_environment() -> None:
    source = Path(__file__).parents[1] / "src" / "minfer"
    readers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    }
    # hub/pip.py hands the environment on to pip, with another directory for temporary files.
    assert readers == {"settings.py", "hub/pip.py"}
