"""From the name that a verb is given to a file, with a bar while it is fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from minfer.hub import DEFAULT_MODEL, DEFAULT_MODEL_NAME, KNOWN_MODELS, Progress, known_model_path, resolve_model
from minfer.settings import read_settings

_BETTER: Final = ("qwen2.5-coder-0.5b", "qwen2.5-1.5b", "qwen3-4b")


def fetch_model(name: str, progress: Progress) -> Path:
    """The model's file. Whoever has just got the default model is told what it is, and which are better.

    Raises:
        MinferError: as `resolve_model`.
    """
    cache_dir = read_settings().cache_dir
    is_first_try = name == DEFAULT_MODEL_NAME and not known_model_path(DEFAULT_MODEL, cache_dir).exists()
    path = resolve_model(name, cache_dir=cache_dir, progress=progress)
    if is_first_try:
        print(_first_try_notice(), file=sys.stderr)  # noqa: T201
    return path


def _first_try_notice() -> str:
    sizes = {model.name: f"{model.n_bytes / 1e9:.1f} GB" for model in KNOWN_MODELS}
    better = ", ".join(f"{name} ({sizes[name]})" for name in _BETTER)
    title = DEFAULT_MODEL.title.partition(",")[0]
    return (
        f"({title} is a small model, for a first try, and often wrong; better ones: `--model NAME` fetches {better}, "
        f"and `minfer models --available` lists more)"
    )
