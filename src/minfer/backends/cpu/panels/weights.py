"""Packs the weights of a graph, in parallel, into memory that kernels read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.base import WeightSource
from minfer.backends.cpu.panels.floats import FLOAT_TYPES, pack_float, packed_float_bytes
from minfer.backends.cpu.panels.pack import pack, packable_types, packed_bytes
from minfer.graph import Graph, Value
from minfer.graph.ops import WeightRole
from minfer.hub import Progress
from minfer.quants import GGMLType, dequantisable_types, dequantise

PackedWeights = Mapping[tuple[str, WeightRole], NDArray[np.uint8]]
"""By name and role: a matrix as panels, a vector as float32."""

WEIGHT_TYPES: Final[Mapping[WeightRole, tuple[GGMLType, ...]]] = MappingProxyType(
    {WeightRole.MATRIX: (*packable_types(), *FLOAT_TYPES), WeightRole.VECTOR: dequantisable_types()}
)
"""The types that can be packed."""


@dataclass(frozen=True)
class WeightJob:
    """A weight in one role."""

    value: Value
    role: WeightRole


def weight_jobs(graph: Graph, segments: Iterable[range]) -> Iterator[WeightJob]:
    """What the nodes of the segments need; the same job comes as often as there are nodes that do."""
    for node in (graph.nodes[index] for segment in segments for index in segment):
        for position, role in node.op.weight_roles.items():
            yield WeightJob(graph.value(node.inputs[position]), role)


def pack_weights(
    jobs: Iterable[WeightJob], source: WeightSource, n_threads: int, progress: Progress | None
) -> PackedWeights:
    """Packs every weight once for each role, and gives the pages of the file back."""
    wanted = {(job.value.name, job.role): job for job in jobs}
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
    match job.role:
        case WeightRole.VECTOR:
            values = dequantise(spec.ggml_type, data, width).reshape(-1)
            memory = aligned_zeros(values.nbytes)
            memory[:] = values.view(np.uint8)
        case WeightRole.MATRIX:
            n_rows = int(spec.shape[0])
            if spec.ggml_type in FLOAT_TYPES:
                memory = aligned_zeros(packed_float_bytes(spec.ggml_type, n_rows, width))
                pack_float(spec.ggml_type, data, width, memory)
            else:
                memory = aligned_zeros(packed_bytes(spec.ggml_type, n_rows, width))
                pack(spec.ggml_type, data, width, memory)
    return memory
