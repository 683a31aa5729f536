"""The tiny models, written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tiny_models import TINY_SPECS, write_tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a model, by its name in `TINY_SPECS`; not to be written to."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def path(name: str) -> Path:
        return write_tiny(folder / f"{name}.gguf", TINY_SPECS[name])

    return path
