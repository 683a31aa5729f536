"""The command `minfer` in a process of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_load import tiny_path

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny model."""
    return tiny_path(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache without models, for all tests: kernels are compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(tmp_path: Path, cache: Path) -> Run:
    """Runs `minfer` with arguments, in an empty directory; stdin is empty unless given."""

    def run(*arguments: str | Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "minfer", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "MINFER_CACHE_DIR": str(cache), "NO_COLOR": "1", **environment},
            timeout=60,
        )

    return run
