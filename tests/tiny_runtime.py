"""Runs model files on given backends, without the tokenizer and the caches that `minfer.load` brings along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minfer.backends import Backend
from minfer.backends.reference import ReferenceBackend
from minfer.engine.loading import FileWeights
from minfer.engine.model_identity import ModelIdentity
from minfer.engine.plan import ExecutionPlan
from minfer.engine.runtime import Runtime, StepPart, step_bounds
from minfer.engine.session import Session
from minfer.gguf import open_gguf
from minfer.graph import Bounds, Symbol
from minfer.models import ARCHITECTURES, Architecture, KVTypes, declare_graph
from minfer.passes import PassContext, lower
from minfer.quants import GGMLType
from minfer.trace import Observer

MAX_TOKENS = 96


def tiny_bounds(n_ctx: int, max_tokens: int = MAX_TOKENS) -> Bounds:
    """Like those of the engine, but the logits of every token of a step may be asked for."""
    return {**step_bounds(n_ctx, max_tokens), Symbol.N_OUTPUTS: max_tokens}


@contextmanager
def tiny_runtime(
    path: Path,
    *,
    backends: Sequence[Backend] | None = None,
    kv_types: KVTypes | None = None,
    n_ctx: int = 256,
    max_tokens: int = MAX_TOKENS,
    n_threads: int | None = 1,
    poison: bool = True,
    observers: Sequence[Observer] = (),
    prefix_cache_bytes: int = 0,
    architectures: Mapping[str, Architecture] = ARCHITECTURES,
) -> Iterator[Runtime]:
    """The model at `path`, lowered for the backends (the reference one by default) and ready to run; its cache is f32
    unless types are given, so that nothing but the computation rounds.

    Memory that holds nothing is filled with NaN, unless `poison` is off.
    """
    runners = tuple(backends or (ReferenceBackend(),))
    bounds = tiny_bounds(n_ctx, max_tokens)
    with open_gguf(path) as file:
        config, graph = declare_graph(file, kv_types or KVTypes(GGMLType.F32, GGMLType.F32), architectures)
        lowered = lower(graph, PassContext(runners, bounds))
        plan = ExecutionPlan(lowered, runners, FileWeights(file), bounds, n_threads=n_threads, poison=poison)
        identity = ModelIdentity(file, ", ".join(runner.name for runner in runners))
        runtime = Runtime(
            plan, config, n_ctx, bounds, observers, identity=identity, prefix_cache_bytes=prefix_cache_bytes
        )
        try:
            yield runtime
        finally:
            runtime.close()


def whole_logits(runtime: Runtime, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits after every token, f32 [n_tokens, n_vocab], from a single step over a new sequence."""
    sequence = runtime.sequence()
    sequence.reserve(len(tokens))
    try:
        return runtime.step([StepPart(tokens, 0, sequence.pages, range(len(tokens)))])
    finally:
        sequence.free()


def chunked_logits(runtime: Runtime, tokens: Sequence[int], chunk: int) -> NDArray[np.float32]:
    """The same from steps of `chunk` tokens each; with 1, the sequence is decoded token by token."""
    with Session(runtime) as session:
        return session.extend_all(tokens, chunk=chunk)


def same_bits(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Whether two arrays hold the same bits; unlike with ==, -0 is not 0, and a NaN may equal another one."""
    return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
