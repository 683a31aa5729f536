"""The arena of a program: one block of memory, used exactly as the pass `plan_memory` has planned it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.errors import GraphError
from minfer.graph import Graph, Node, StepInputs, ValueId, last_uses
from minfer.quants import GGMLType

ALIGNMENT_BYTES = 64


def aligned_zeros(n_bytes: int, alignment: int = ALIGNMENT_BYTES) -> NDArray[np.uint8]:
    """Zeroed bytes at an aligned address. Memory is only taken from the system as it is touched."""
    raw = np.zeros(n_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + n_bytes]


class Arena:
    """The computed values of one backend."""

    def __init__(self, graph: Graph, backend_name: str) -> None:
        if graph.memory is None:
            raise GraphError("a graph is compiled after plan_memory")
        self._graph = graph
        self._placements = graph.memory.placements
        self._last_uses = last_uses(graph)
        self._memory = aligned_zeros(graph.memory.arena_bytes[backend_name])

    def view(self, value_id: ValueId, inputs: StepInputs) -> NDArray[Any]:
        """A value in the sizes of this step; valid until its storage is reused."""
        spec = self._graph.value(value_id).spec
        sizes = inputs.sizes()
        place = self._placements[value_id]
        dtype = np.int32 if spec.ggml_type is GGMLType.I32 else np.float32
        memory = self._memory[place.offset : place.offset + spec.n_bytes(sizes)]
        return memory.view(dtype).reshape(spec.resolve(sizes))

    def address(self, value_id: ValueId) -> int:
        """Where a value begins; it never moves."""
        return int(self._memory.ctypes.data) + self._placements[value_id].offset

    def write(self, value_id: ValueId, array: NDArray[Any]) -> None:
        """Puts the rows of a value that was made elsewhere in its place."""
        place = self._placements[value_id]
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        self._memory[place.offset : place.offset + data.size] = data

    def poison(self) -> None:
        """Fills everything with NaN."""
        self._memory[:] = 0xFF  # an f32 whose bits are all ones is a NaN

    def poison_dead(self, index: int, node: Node) -> None:
        """Fills with NaN what nobody needs any more once node number `index` has run."""
        for storage in {self._graph.storage(i) for i in (*node.inputs, *node.outputs)}:
            if storage in self._placements and self._last_uses[storage] == index:
                place = self._placements[storage]
                self._memory[place.offset : place.offset + place.n_bytes] = 0xFF

    def close(self) -> None:
        """Gives the memory back."""
        self._memory = aligned_zeros(0)
