"""The program of the CPU backend: packed weights, compiled kernels, a tape, and the threads that walk it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import Arena, aligned_zeros
from minfer.backends.base import CompileRequest
from minfer.backends.cpu.compile import compile_tape
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.emission import Emission
from minfer.backends.cpu.emit import Unit, emit_segment
from minfer.backends.cpu.ops import OPS
from minfer.backends.cpu.panels.weights import pack_weights, weight_jobs
from minfer.backends.cpu.pool import Pool
from minfer.errors import GraphError
from minfer.graph import StepInputs, Symbol, ValueId, ValueKind
from minfer.simd import Target
from minfer.trace import NodeEvent, Observer

_STEP_ARRAYS = {
    StepWord.TOKENS: "tokens",
    StepWord.POSITIONS: "positions",
    StepWord.CELLS: "cells",
    StepWord.SPANS: "spans",
    StepWord.PAGES: "pages",
    StepWord.OUTPUT_ROWS: "output_rows",
}


class CpuProgram:
    """See `backends/base.py` for the protocol. Steps must not overlap in time: the caller takes turns."""

    def __init__(
        self, request: CompileRequest, backend_name: str, target: Target, n_threads: int, kernel_cache: Path | None
    ) -> None:
        self._graph = request.graph
        self._backend_name = backend_name
        self._poison = request.poison
        self._arena = Arena(request.graph, backend_name)
        self._regions = self._make_regions(request)
        jobs = weight_jobs(request.graph, request.segments)
        self._weights = pack_weights(jobs, request.weights, n_threads, request.progress)
        emission = Emission(
            request,
            self._arena,
            self._regions,
            self._weights,
            OPS,
            n_threads=n_threads,
            vector_bytes=target.vector_bytes,
        )
        self._units = [emit_segment(emission, segment) for segment in request.segments]
        self._tape = emission.tape
        module = compile_tape(self._tape, target, kernel_cache, request.progress)
        self._pool = Pool(module, self._tape.entries, n_threads, self._tape.scratch_bytes)
        if self._poison:
            self._arena.poison()

    def _make_regions(self, request: CompileRequest) -> dict[ValueId, NDArray[np.uint8]]:
        regions = {}
        for segment in request.segments:
            for index in segment:
                for value_id in request.graph.nodes[index].inputs:
                    value = request.graph.value(value_id)
                    if value.kind is ValueKind.STATE and value_id not in regions:
                        regions[value_id] = aligned_zeros(value.spec.n_bytes(request.bounds))
        return regions

    def run(self, segment: int, inputs: StepInputs, observers: Sequence[Observer]) -> None:
        arrays = inputs.arrays()
        block = self._pool.step_block
        block[StepWord.N_TOKENS], block[StepWord.N_OUTPUTS] = inputs.n_tokens, inputs.n_outputs
        kept = {word: np.ascontiguousarray(arrays[name]) for word, name in _STEP_ARRAYS.items()}
        for word, array in kept.items():
            block[word] = array.ctypes.data
        units = self._units[segment]
        if observers or self._poison:
            for unit in units:
                self._run_unit(unit, inputs, observers)
            return
        first = units[0].entries.start
        for unit in units:
            if unit.prepare is not None:
                unit.prepare(inputs)
        self._pool.run(first, units[-1].entries.stop)

    def _run_unit(self, unit: Unit, inputs: StepInputs, observers: Sequence[Observer]) -> None:
        """One unit by itself, so that its outputs can be looked at before their storage is used again."""
        start_s = time.perf_counter()
        if unit.prepare is not None:
            unit.prepare(inputs)
        if len(unit.entries):
            self._pool.run(unit.entries.start, unit.entries.stop)
        duration_s = time.perf_counter() - start_s
        for index in unit.nodes:
            node = self._graph.nodes[index]
            if observers:
                outputs = [(self._graph.value(i).name, self._arena.view(i, inputs)) for i in node.outputs]
                shown_s = duration_s if index == unit.nodes[-1] else 0.0
                event = NodeEvent(node.name, node.op.kind, node.layer, self._backend_name, outputs, start_s, shown_s)
                for observer in observers:
                    observer.node_ran(event)
        if self._poison:
            for index in unit.nodes:
                self._arena.poison_dead(index, self._graph.nodes[index])

    def read(self, value_id: ValueId, inputs: StepInputs) -> NDArray[Any]:
        return self._arena.view(value_id, inputs)

    def write(self, value_id: ValueId, array: NDArray[Any]) -> None:
        self._arena.write(value_id, array)

    def region(self, value_id: ValueId) -> NDArray[np.uint8]:
        if value_id not in self._regions:
            raise GraphError(f"{self._graph.value(value_id).name} is no KV region")
        cell_bytes = self._graph.value(value_id).spec.n_bytes({Symbol.N_CELLS: 1})
        return self._regions[value_id].reshape(-1, cell_bytes)

    def close(self) -> None:
        self._pool.close()
        self._arena.close()
        self._regions.clear()
