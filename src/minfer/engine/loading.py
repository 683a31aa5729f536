"""From a name to a model that is ready to run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from minfer.backends import BACKEND_NAMES, make_backend
from minfer.engine.cache_types import parse_cache_type
from minfer.engine.model import Model
from minfer.engine.model_identity import ModelIdentity
from minfer.engine.plan import ExecutionPlan
from minfer.engine.prefix_cache import DEFAULT_MAX_BYTES
from minfer.engine.runtime import DEFAULT_N_SEQUENCES, Runtime, step_bounds
from minfer.errors import MinferWarning, ModelError, ParameterError
from minfer.gguf import GGUFFile, open_gguf
from minfer.hub import Progress, resolve_model
from minfer.models import ModelConfig, declare_graph
from minfer.passes import PassContext, lower
from minfer.settings import Settings, read_settings
from minfer.text import Tokenizer, build_tokenizer
from minfer.trace import HiddenStateDumper, Observer, TraceRecorder
from minfer.version import __version__

DEFAULT_N_CTX: Final = 8192
"""The context where none is asked for, unless the model was trained with less."""


def load(
    path_or_name: str | Path = "default",
    n_ctx: int | None = None,
    threads: int | None = None,
    backend: str | None = None,
    cache_type: str | None = None,
    *,
    chat_template: str | Path | None = None,
    n_sequences: int = DEFAULT_N_SEQUENCES,
    prefix_cache_bytes: int = DEFAULT_MAX_BYTES,
    progress: Progress | None = None,
) -> Model:
    """Opens a model.

    Args:
        path_or_name: a path, `default`, the name of a model in the cache, `hf:owner/repo:file.gguf`, or a name that
            `minfer models --available` lists.
        n_ctx: how many positions a sequence may have; by default what the model was trained with, up to 8192.
        threads: how many threads compute; by default the backend decides.
        backend: by default `MINFER_BACKEND`, or the first of `minfer.backends.BACKEND_NAMES`.
        cache_type: the type of the KV cache, f32, f16 or q8_0, or of its keys and values, as in `k:f16,v:q8_0`; by
            default `MINFER_CACHE_TYPE`, or f16.
        chat_template: in place of the file's own: the name of a well-known one (`minfer.text.TEMPLATE_NAMES`), the path
            of a file, or the text of a template.
        n_sequences: how many sequences of full length the KV cache has room for. Its memory is taken from the system
            only as it is used.
        prefix_cache_bytes: how much of the KV cache finished sequences may keep, for prompts that begin like them; 0
            turns the reuse of prefixes off.
        progress: told about a download.

    Raises:
        ModelNotFoundError, DownloadError: no such model, or it could not be fetched.
        GGUFError, ModelError, TokenizerError: the file is damaged or does not fit together.
        UnsupportedError: an architecture, type, backend or cache type that is not supported.
        ParameterError: a value out of its range, or no such chat template.
        TemplateError: the given chat template does not compile.
    """
    settings = read_settings()
    for name, value in (("n_ctx", n_ctx), ("threads", threads), ("n_sequences", n_sequences)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ParameterError(f"{name} must be an integer of at least 1, not {value!r}")
    if isinstance(prefix_cache_bytes, bool) or not isinstance(prefix_cache_bytes, int) or prefix_cache_bytes < 0:
        raise ParameterError(f"prefix_cache_bytes must be an integer of at least 0, not {prefix_cache_bytes!r}")
    kv_types = parse_cache_type(cache_type or settings.cache_type)
    runner = make_backend(backend or settings.backend or BACKEND_NAMES[0], settings)
    file = open_gguf(resolve_model(path_or_name, cache_dir=settings.cache_dir, progress=progress))
    try:
        config, graph = declare_graph(file, kv_types)
        tokenizer = build_tokenizer(file.metadata, chat_template)
        if tokenizer.n_vocab != config.n_vocab:
            raise ModelError(
                f"the tokenizer has {tokenizer.n_vocab} tokens, and token_embd.weight has {config.n_vocab} rows"
            )
        size = _context_size(n_ctx, config)
        bounds = step_bounds(size, n_sequences=n_sequences)
        lowered = lower(graph, PassContext((runner,), bounds))
        plan = ExecutionPlan(lowered, (runner,), FileWeights(file), bounds, n_threads=threads, progress=progress)
        runtime = Runtime(
            plan,
            config,
            size,
            bounds,
            _observers(settings),
            identity=ModelIdentity(file, f"minfer {__version__}, {runner.name}"),
            prefix_cache_bytes=prefix_cache_bytes,
        )
        return Model(file, tokenizer, runtime, runner.vocabulary_ops())
    except BaseException:
        file.close()
        raise


def load_tokenizer(path: str | Path, chat_template: str | Path | None = None) -> Tokenizer:
    """Opens the tokenizer of a file alone; the file may hold a vocabulary and no tensors. Takes the names and chat
    templates that `load` takes.

    Raises:
        ModelNotFoundError, GGUFError, TokenizerError, UnsupportedError, ParameterError, TemplateError: as for `load`.
    """
    with open_gguf(resolve_model(path, cache_dir=read_settings().cache_dir)) as file:
        return build_tokenizer(file.metadata, chat_template)


class FileWeights:
    """The weights of a file, as backends read them."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    def packed(self, name: str) -> NDArray[np.uint8]:
        return self._file.tensor_data(name)

    def release(self, name: str) -> None:
        self._file.release(name)


def _context_size(n_ctx: int | None, config: ModelConfig) -> int:
    if n_ctx is None:
        return min(config.n_ctx_train, DEFAULT_N_CTX)
    if n_ctx > config.n_ctx_train:
        warnings.warn(
            f"n_ctx {n_ctx} is more than the {config.n_ctx_train} positions that the model was trained with: "
            "its answers may get worse beyond them",
            MinferWarning,
            stacklevel=3,
        )
    return n_ctx


def _observers(settings: Settings) -> list[Observer]:
    observers: list[Observer] = []
    if settings.trace_path is not None:
        observers.append(TraceRecorder(settings.trace_path))
    if settings.dump_dir is not None:
        observers.append(HiddenStateDumper(settings.dump_dir))
    return observers
