"""From the name of a model to its file."""

from __future__ import annotations

from pathlib import Path

from minfer.errors import ModelNotFoundError, ParameterError, did_you_mean
from minfer.hub.catalogue import KNOWN_MODELS, known_hub_file, known_model
from minfer.hub.default_model import DEFAULT_MODEL_NAME, fetch_default_model
from minfer.hub.hugging_face import HUGGING_FACE_SYNTAX, fetch_from_hugging_face, parse_hugging_face_name
from minfer.hub.known import fetch_known_model
from minfer.hub.paths import GGUF_SUFFIX, HUGGING_FACE_PREFIX, CachedModel, cached_models, gguf_files, models_dir
from minfer.hub.progress import Progress
from minfer.paths import user_path


def resolve_model(name: str | Path, *, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The file of the model `name`, downloaded if that is what the name asks for.

    In this order, the first that fits:

    1. `default`: the default model, downloaded the first time.
    2. `hf:owner/repo:file.gguf`: a file of the Hugging Face Hub, downloaded the first time.
    3. a path to a file (a file that is called `default` is `./default`).
    4. the name of a model in the cache, with or without `.gguf`; in other case, too, if only one model fits then.

    5. the name of a model of the catalogue (`minfer models --available`), downloaded the first time.

    A `Path` is only ever a path.

    Raises:
        ParameterError: the name is empty, or neither text nor a path, or begins with `hf:` and has the wrong form.
        ModelNotFoundError: no model goes by the name; lists what was tried, and the names in the cache.
        DownloadError: the download failed; with the reason.
        SettingsError: the cache can't be read.
    """
    if name == "":
        raise ParameterError(f"the model's name is empty; give {_possible_names()}")
    path = user_path(name, "the model")
    if name == DEFAULT_MODEL_NAME:
        return fetch_default_model(cache_dir, progress=progress)
    if isinstance(name, str) and name.startswith(HUGGING_FACE_PREFIX):
        wanted = parse_hugging_face_name(name)
        known = known_hub_file(wanted)
        if known is not None:
            return fetch_known_model(known, cache_dir, progress=progress)
        return fetch_from_hugging_face(wanted, cache_dir, progress)

    tried = []
    try:
        if path.is_file():
            return path
        tried.append(f"the file {path}: {_why_not_a_file(path)}")
    except OSError as error:  # no permission to look, or a name longer than the file system takes
        tried.append(f"the file {path}: {error.strerror}")

    models = cached_models(cache_dir)
    if isinstance(name, str):
        fitting = _fitting(name, models)
        if len(fitting) == 1:
            return fitting[0].path
        several = f": it may be {' or '.join(model.name for model in fitting)}" if fitting else ": no such name"
        tried.append(f"the cache {models_dir(cache_dir)}{several}")
        known = known_model(name)
        if known is not None and not fitting:
            return fetch_known_model(known, cache_dir, progress=progress)
        tried.append(f"the models that one name fetches: {', '.join(model.name for model in KNOWN_MODELS)}")
    names = ", ".join(model.name for model in models) or "none yet"
    hint = f"models in the cache: {names}{_meant(str(name), models)}\n"
    raise ModelNotFoundError(str(name), tried, f"{hint}a model is given by {_possible_names()}")


def _possible_names() -> str:
    return (
        f"the path of a GGUF file, the name of a model in the cache or of those that one name fetches, "
        f"{HUGGING_FACE_SYNTAX}, or {DEFAULT_MODEL_NAME} for the default model"
    )


def _meant(name: str, models: tuple[CachedModel, ...]) -> str:
    try:
        beside = [str(file) for file in gguf_files(Path(name).parent)]
    except OSError:  # no permission to look
        beside = []
    if f"{name}{GGUF_SUFFIX}" in beside:
        return f" (did you mean {name}{GGUF_SUFFIX}?)"
    return did_you_mean(name, (DEFAULT_MODEL_NAME, *(model.name for model in models), *beside))


def _fitting(name: str, models: tuple[CachedModel, ...]) -> list[CachedModel]:
    """The models that `name` may mean: the one of exactly that name, or else those that differ in case only."""
    exact = [model for model in models if model.name in (name, name.removesuffix(GGUF_SUFFIX))]
    folded = name.casefold().removesuffix(GGUF_SUFFIX)
    return exact or [model for model in models if model.name.casefold() == folded]


def _why_not_a_file(path: Path) -> str:
    if path.is_dir():
        inside = ", ".join(file.name for file in gguf_files(path))
        return (
            f"a directory; give a file in it, such as {inside}"
            if inside
            else f"a directory, without {GGUF_SUFFIX} files"
        )
    return "no such file" if not path.exists() else "not a regular file"
