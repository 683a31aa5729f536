"""A tiny model that all tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import minfer
from tiny_load import tiny_path


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="session")
def model(tiny_dir: Path) -> Iterator[minfer.Model]:
    """llama, grouped queries, three layers, a context of 256; random weights."""
    with minfer.load(tiny_path(tiny_dir)) as loaded:
        yield loaded
