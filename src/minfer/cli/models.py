"""minfer models: what is in the cache, and what can be fetched by a name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minfer.cli.console import reports_errors, write_text
from minfer.hub import DEFAULT_MODEL, DEFAULT_MODEL_NAME, KNOWN_MODELS, cached_models, known_model_path
from minfer.settings import read_settings


@reports_errors
def models(
    available: Annotated[
        bool, typer.Option("--available", help="List the models that --model fetches by a short name.")
    ] = False,
) -> None:
    """List the models in the cache, by the names that --model takes.

    Examples:

        minfer models

        minfer models --available
    """
    cache_dir = read_settings().cache_dir
    if available:
        write_text("\n".join(_available_lines(cache_dir)), "\n")
        return
    found = cached_models(cache_dir)
    if not found:
        write_text(f"no models in {cache_dir} yet; `minfer run PROMPT` fetches the default one", "\n")
        return
    width = max(len(model.name) for model in found)
    for model in found:
        write_text(f"{model.name:<{width}}  {_megabytes(model.n_bytes)}  {model.path}", "\n")


def _available_lines(cache_dir: Path) -> list[str]:
    width = max(len(model.name) for model in KNOWN_MODELS)
    indent = " " * (width + 2)
    lines = []
    for model in KNOWN_MODELS:
        notes = [model.licence]
        if model is DEFAULT_MODEL:
            notes.append(f"also `{DEFAULT_MODEL_NAME}`")
        if known_model_path(model, cache_dir).exists():
            notes.append("in the cache")
        lines.append(f"{model.name:<{width}}  {_megabytes(model.n_bytes)}  {model.title} ({', '.join(notes)})")
        lines.append(f"{indent}from {model.source}")
        lines.append(f"{indent}sha256 {model.sha256}")
    return lines


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:>9,.1f} MB"
