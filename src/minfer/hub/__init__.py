"""Where models come from: names, the cache on disk, and downloads."""

from __future__ import annotations

from minfer.hub.catalogue import DEFAULT_MODEL, KNOWN_MODELS, KnownModel, Packages, known_model, recommended_sampling
from minfer.hub.default_model import DEFAULT_MODEL_NAME, fetch_default_model
from minfer.hub.known import fetch_known_model, known_model_path
from minfer.hub.paths import CachedModel, cached_models, models_dir
from minfer.hub.progress import Progress
from minfer.hub.resolve import resolve_model

__all__ = [
    "DEFAULT_MODEL",
    "DEFAULT_MODEL_NAME",
    "KNOWN_MODELS",
    "CachedModel",
    "KnownModel",
    "Packages",
    "Progress",
    "cached_models",
    "fetch_default_model",
    "fetch_known_model",
    "known_model",
    "known_model_path",
    "models_dir",
    "recommended_sampling",
    "resolve_model",
]
