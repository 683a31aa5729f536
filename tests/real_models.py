"""The real models that some tests use, and how they come into the user's cache.

Run as a program, it fetches the large one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minfer.cli.console import ProgressBar
from minfer.errors import DownloadError
from minfer.hub import fetch_default_model, fetch_known_model, known_model, known_model_path
from minfer.settings import read_settings

_LARGE = known_model("qwen2.5-coder-0.5b")
assert _LARGE is not None


def default_model() -> Path:
    """The default model's file, fetched if need be; skips the test where it can't be had."""
    try:
        return fetch_default_model(read_settings().cache_dir)
    except DownloadError as error:
        pytest.skip(f"the default model can't be fetched: {str(error).splitlines()[0]}")


def large_model() -> Path:
    """The large model's file; skips the test where it has not been fetched."""
    path = known_model_path(_LARGE, read_settings().cache_dir)
    if not path.exists():
        pytest.skip(f"{_LARGE.file_name} is not in the cache; scripts/fetch-test-models fetches it (491 MB)")
    return path


if __name__ == "__main__":
    print(fetch_known_model(_LARGE, read_settings().cache_dir, progress=ProgressBar()))  # noqa: T201
