"""Tiny models through the public `minfer.load`."""

from __future__ import annotations

from pathlib import Path

from tiny_models import TINY_SPECS, write_tiny


def tiny_path(directory: Path, name: str = "llama-gqa") -> Path:
    """The file of a tiny model, written into a directory the first time."""
    path = directory / f"{name}.gguf"
    return path if path.exists() else write_tiny(path, TINY_SPECS[name])
