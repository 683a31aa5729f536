"""A compiled graph: the programs of its backends, run segment by segment with the copies between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.backends import Backend, CompileRequest, Program, WeightSource
from minfer.engine.page_store import KVLayer, KVRegion
from minfer.errors import GraphError
from minfer.graph import Bounds, Graph, StepInputs, Value, ValueId, ValueKind
from minfer.graph.ops import Copy, KVStore, Rope
from minfer.hub import Progress
from minfer.passes import Segment, segments
from minfer.trace import Observer


class ExecutionPlan:
    """Runs steps of a lowered graph. Steps must not overlap in time."""

    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        weights: WeightSource,
        bounds: Bounds,
        *,
        n_threads: int | None = None,
        progress: Progress | None = None,
        poison: bool = False,
    ) -> None:
        self._graph = graph
        self._schedule: list[tuple[Segment, int]] = []
        self._home: dict[int, str] = {}
        self._programs: dict[str, Program] = {}
        ranges: dict[str, list[range]] = {}
        for segment in segments(graph):
            mine = ranges.setdefault(segment.backend, [])
            self._schedule.append((segment, len(mine)))
            if not segment.is_copy:
                mine.append(segment.nodes)
            for index in segment.nodes:
                self._home.update(dict.fromkeys(graph.nodes[index].outputs, segment.backend))
        for backend in backends:
            if backend.name in ranges:
                request = CompileRequest(
                    graph, tuple(ranges[backend.name]), weights, bounds, n_threads, progress, poison
                )
                self._programs[backend.name] = backend.compile(request)

    def step(self, inputs: StepInputs, observers: Sequence[Observer] = ()) -> NDArray[np.float32]:
        """Runs one step and returns a copy of the logits f32 [n_outputs, n_vocab]."""
        if observers:
            for observer in observers:
                observer.begin_step(inputs.n_tokens, int(inputs.positions[0]))
        for segment, index in self._schedule:
            program = self._programs[segment.backend]
            if segment.is_copy:
                node = self._graph.nodes[segment.nodes.start]
                source = self._programs[self._home[node.inputs[0]]]
                program.write(node.outputs[0], source.read(node.inputs[0], inputs))
            else:
                program.run(index, inputs, observers)
        logits = self._graph.outputs["logits"]
        result: NDArray[np.float32] = self._programs[self._home[logits]].read(logits, inputs).copy()
        return result

    def kv_layers(self) -> tuple[KVLayer, ...]:
        """The KV regions, layer by layer, as writable views of the backends' memory."""
        makers = {value_id: node for node in self._graph.nodes for value_id in node.outputs}
        layers = []
        for node in self._graph.nodes:
            if isinstance(node.op, KVStore):
                maker = makers[node.inputs[0]]
                while isinstance(maker.op, Copy):
                    maker = makers[maker.inputs[0]]
                rope = maker.op if isinstance(maker.op, Rope) else None
                k, v = (self._kv_region(value_id) for value_id in node.inputs[3:])
                layers.append(KVLayer(node.name, k, v, rope))
        return tuple(layers)

    def _kv_region(self, value_id: ValueId) -> KVRegion:
        value = self._graph.value(value_id)
        _, n_kv_heads, width = value.spec.shape
        rows = self.region(value.name)
        return KVRegion(rows.reshape(rows.shape[0], int(n_kv_heads), -1), int(width), value.spec.ggml_type)

    def region(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a KV region by name, a writable view: (n_cells, bytes of a cell)."""
        value = self._state(name)
        for node in self._graph.nodes:
            if value.id in node.inputs and node.backend is not None:
                return self._programs[node.backend].region(value.id)
        raise GraphError(f"no node uses {name}")

    def _state(self, name: str) -> Value:
        for value in self._graph.of_kind(ValueKind.STATE):
            if value.name == name:
                return value
        raise GraphError(f"there is no KV region {name}")

    def close(self) -> None:
        for program in self._programs.values():
            program.close()
