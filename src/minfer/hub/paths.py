"""How the cache is laid out, and what is in it.

    <cache_dir>/models/NAME.gguf                     a model that goes by the name NAME; files may be put here by hand
    <cache_dir>/models/hf/OWNER/REPO/FILE.gguf       a model that goes by the name hf:OWNER/REPO:FILE.gguf
    <cache_dir>/models/.downloads/                   what is being downloaded, and the lock that guards it

A file takes its place there only when it is complete, so whatever has a model's name is a whole model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minfer.errors import SettingsError

GGUF_SUFFIX = ".gguf"
HUGGING_FACE_PREFIX = "hf:"


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache: the name it goes by, its file, and the file's size."""

    name: str
    path: Path
    n_bytes: int


def models_dir(cache_dir: Path) -> Path:
    """Where models lie."""
    return cache_dir / "models"


def downloads_dir(cache_dir: Path) -> Path:
    """Where models are prepared; on the file system of `models_dir`, so that moving a file there is atomic."""
    return models_dir(cache_dir) / ".downloads"


def repository_dir(cache_dir: Path, repo_id: str) -> Path:
    """Where the files of the Hugging Face repository `owner/repo` lie."""
    return _hugging_face_dir(cache_dir) / repo_id


def cached_models(cache_dir: Path) -> tuple[CachedModel, ...]:
    """The models in the cache, by name; none if there is no cache yet.

    Raises:
        SettingsError: it can't be read.
    """
    try:
        return _cached_models(cache_dir)
    except OSError as error:
        where, why = error.filename or models_dir(cache_dir), error.strerror or error
        raise SettingsError(f"the cache can't be read: {where}: {why}; MINFER_CACHE_DIR names another") from error


def _cached_models(cache_dir: Path) -> tuple[CachedModel, ...]:
    directory = models_dir(cache_dir)
    own = [CachedModel(path.stem, path, path.stat().st_size) for path in gguf_files(directory)]
    hub = _hugging_face_dir(cache_dir)
    fetched = [
        CachedModel(_hugging_face_name(path.relative_to(hub)), path, path.stat().st_size)
        for repository in sorted(hub.glob("*/*/"))
        for path in _gguf_files_below(repository)
    ]
    return tuple(sorted((*own, *fetched), key=lambda model: model.name))


def unstored(file_name: str, directory: Path, error: OSError) -> str:
    """Says that a file could not be put into a directory of the cache, and what to do."""
    why = error.strerror or str(error)
    return f"{file_name} could not be stored in {directory}: {why}; MINFER_CACHE_DIR names another directory"


def gguf_files(directory: Path) -> tuple[Path, ...]:
    """The .gguf files directly in `directory`, sorted; none if it does not exist."""
    if not directory.is_dir():
        return ()
    return tuple(sorted(p for p in directory.iterdir() if p.suffix.lower() == GGUF_SUFFIX and p.is_file()))


def _hugging_face_dir(cache_dir: Path) -> Path:
    return models_dir(cache_dir) / "hf"


def _hugging_face_name(relative: Path) -> str:
    owner, repo, *rest = relative.parts
    return f"{HUGGING_FACE_PREFIX}{owner}/{repo}:{'/'.join(rest)}"


def _gguf_files_below(directory: Path) -> list[Path]:
    # Names with a dot in front are huggingface_hub's own records.
    visible = (d for d in sorted(directory.iterdir()) if d.is_dir() and not d.name.startswith("."))
    return [*gguf_files(directory), *(path for below in visible for path in _gguf_files_below(below))]
