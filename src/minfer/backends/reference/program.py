"""Runs compiled segments: one kernel call a node, results copied to their place in the arena.

The arena is used exactly as planned, also where it would be simpler not to: a mistake in a pass then shows in the
logits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from minfer.backends.arena import Arena
from minfer.backends.base import CompileRequest
from minfer.backends.reference.kernels import KERNELS
from minfer.backends.reference.operands import Region, Weight, WeightCache
from minfer.errors import GraphError
from minfer.graph import Bounds, Node, StepInputs, ValueId, ValueKind
from minfer.trace import NodeEvent, Observer


class ReferenceProgram:
    """The program of one backend (see `backends/base.py`). Steps must not overlap in time: the caller takes turns."""

    def __init__(self, request: CompileRequest, backend_name: str, weight_cache_bytes: int) -> None:
        self._graph = request.graph
        self._segments = request.segments
        self._poison = request.poison
        self._backend_name = backend_name
        self._arena = Arena(request.graph, backend_name)
        self._cache = WeightCache(request.weights, weight_cache_bytes)
        self._constants: dict[ValueId, Weight | Region] = {}
        for index in (index for segment in request.segments for index in segment):
            for value_id in request.graph.nodes[index].inputs:
                self._prepare(value_id, request.bounds)
        self._threads = ThreadpoolController()
        if self._poison:
            self._arena.poison()

    def _prepare(self, value_id: ValueId, bounds: Bounds) -> None:
        value = self._graph.value(value_id)
        if value_id in self._constants:
            return
        if value.kind is ValueKind.WEIGHT:
            self._constants[value_id] = Weight(value.name, value.spec, self._cache)
        elif value.kind is ValueKind.STATE:
            n_cells, n_kv_heads, width = value.spec.resolve(bounds)
            self._constants[value_id] = Region(n_cells, n_kv_heads, width, value.spec.ggml_type)

    def run(self, segment: int, inputs: StepInputs, observers: Sequence[Observer]) -> None:
        # BLAS cuts a product up in another way for another number of threads, and so adds in another order.
        # Infinities and NaNs in the numbers of a model are data, seen in a trace; they are no faults of this program.
        with self._threads.limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
            for index in self._segments[segment]:
                self._run_node(index, self._graph.nodes[index], inputs, observers)

    def _run_node(self, index: int, node: Node, inputs: StepInputs, observers: Sequence[Observer]) -> None:
        start_s = time.perf_counter() if observers else 0.0
        arrays = inputs.arrays()
        operands = [self._operand(value_id, inputs, arrays) for value_id in node.inputs]
        results = KERNELS[type(node.op)](node.op, *operands)
        if not isinstance(results, tuple):
            results = (results,)
        views = [self.read(value_id, inputs) for value_id in node.outputs]
        for view, result in zip(views, results, strict=True):
            view[...] = result
        if observers:
            outputs = [(self._graph.value(i).name, view) for i, view in zip(node.outputs, views, strict=True)]
            duration_s = time.perf_counter() - start_s
            event = NodeEvent(node.name, node.op.kind, node.layer, self._backend_name, outputs, start_s, duration_s)
            for observer in observers:
                observer.node_ran(event)
        if self._poison:
            self._arena.poison_dead(index, node)

    def _operand(
        self, value_id: ValueId, inputs: StepInputs, arrays: dict[str, NDArray[np.int32]]
    ) -> NDArray[Any] | Weight | Region:
        value = self._graph.value(value_id)
        if value.kind is ValueKind.INPUT:
            return arrays[value.name]
        return self._constants[value_id] if value_id in self._constants else self.read(value_id, inputs)

    def read(self, value_id: ValueId, inputs: StepInputs) -> NDArray[Any]:
        return self._arena.view(value_id, inputs)

    def write(self, value_id: ValueId, array: NDArray[Any]) -> None:
        self._arena.write(value_id, array)

    def region(self, value_id: ValueId) -> NDArray[np.uint8]:
        region = self._constants[value_id]
        if not isinstance(region, Region):
            raise GraphError(f"{self._graph.value(value_id).name} is no KV region")
        return region.packed.reshape(region.packed.shape[0], -1)

    def close(self) -> None:
        self._constants.clear()
        self._arena.close()
