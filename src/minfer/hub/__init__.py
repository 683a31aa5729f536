"""Where models come from: names, the cache on disk, and downloads."""

from __future__ import annotations

from minfer.hub.default_model import DEFAULT_MODEL, DEFAULT_MODEL_NAME, fetch_default_model
from minfer.hub.download import WheelModel
from minfer.hub.paths import CachedModel, cached_models, models_dir
from minfer.hub.progress import Progress
from minfer.hub.resolve import resolve_model

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_MODEL_NAME",
    "CachedModel",
    "Progress",
    "WheelModel",
    "cached_models",
    "fetch_default_model",
    "models_dir",
    "resolve_model",
]
