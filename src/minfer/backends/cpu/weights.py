"""Packs the weights of a graph, in parallel, into memory that kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.base import WeightSource
from minfer.backends.cpu.kernels.matmul_float import FLOAT_TYPES, pack_float, packed_float_bytes
from minfer.backends.cpu.pack import pack, packed_bytes
from minfer.graph import Value
from minfer.hub import Progress
from minfer.quants import dequantise


class WeightUse(Enum):
    """What a kernel wants a weight as."""

    PANELS = "panels"
    """a matrix to multiply with"""
    VECTOR = "vector"
    """float32 values: norms, biases"""


@dataclass(frozen=True)
class WeightJob:
    """A weight in one use."""

    value: Value
    use: WeightUse


def pack_weights(
    jobs: Iterable[WeightJob], source: WeightSource, n_threads: int, progress: Progress | None
) -> Mapping[tuple[str, WeightUse], NDArray[np.uint8]]:
    """Packs every weight once for each use, and gives the pages of the file back."""
    wanted = {(job.value.name, job.use): job for job in jobs}
    total = sum(source.packed(name).nbytes for name, _ in wanted)
    if progress is not None:
        progress.start("packing weights", total)

    def work(job: WeightJob) -> NDArray[np.uint8]:
        data = source.packed(job.value.name)
        memory = _pack(job, data)
        source.release(job.value.name)
        if progress is not None:
            progress.advance(data.nbytes)
        return memory

    try:
        with ThreadPoolExecutor(n_threads, thread_name_prefix="minfer-pack") as pool:
            # The largest first, so that no thread is left with one at the end.
            order = sorted(wanted, key=lambda key: -source.packed(key[0]).nbytes)
            packed = dict(zip(order, pool.map(work, [wanted[key] for key in order]), strict=True))
    finally:
        if progress is not None:
            progress.finish()
    return packed


def _pack(job: WeightJob, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    spec = job.value.spec
    width = int(spec.shape[-1])
    if job.use is WeightUse.VECTOR:
        values = dequantise(spec.ggml_type, data, width).reshape(-1)
        memory = aligned_zeros(values.nbytes)
        memory[:] = values.view(np.uint8)
        return memory
    n_rows = int(spec.shape[0])
    if spec.ggml_type in FLOAT_TYPES:
        memory = aligned_zeros(packed_float_bytes(spec.ggml_type, n_rows, width))
        pack_float(spec.ggml_type, data, width, memory)
    else:
        memory = aligned_zeros(packed_bytes(spec.ggml_type, n_rows, width))
        pack(spec.ggml_type, data, width, memory)
    return memory
