"""What the file of an op gives to this backend, and what it is given to make entries of the tape.

A file in `ops/` says with a `CpuOp` how nodes of an op become entries, and with a `CpuGroup` how nodes in a row become
one. Its functions get an `Emission`: the tape as it grows, and where everything lies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import Arena
from minfer.backends.base import CompileRequest
from minfer.backends.cpu.activations import QuantisedRow
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.panels.weights import PackedWeights
from minfer.backends.cpu.tape import Tape
from minfer.graph import Bounds, Graph, Node, StepInputs, Symbol, TensorSpec, ValueId
from minfer.graph.ops import Op, WeightRole

Prepare = Callable[[StepInputs], None]
"""What the host does before the entries of a node run."""

_SPARE_ROWS = 16
"""Rows that a last tile may read beyond the largest step; their results are not stored."""


def _no_refusal(inputs: Sequence[TensorSpec]) -> str | None:
    return None


def _no_records(inputs: Sequence[TensorSpec]) -> bool:
    return False


@dataclass(frozen=True)
class CpuOp:
    """How this backend runs an op."""

    op: type[Op]
    emit: Callable[[Emission, Node, Any], Prepare | None]
    """adds the entries of a node with this op (the third argument) to the tape"""
    refusal: Callable[[Sequence[TensorSpec]], str | None] = _no_refusal
    """why inputs with these specs are refused, or None; types and shapes of weights and state are checked before"""
    reads_records: Callable[[Sequence[TensorSpec]], bool] = _no_records
    """whether input 0 is read as records, the quantised rows of `activations.py`"""


@dataclass(frozen=True)
class CpuGroup:
    """How nodes in a row run as one."""

    ops: tuple[type[Op], ...]
    fits: Callable[[Emission, Sequence[Node]], bool]
    """whether these nodes, which have these ops, may"""
    emit: Callable[[Emission, Sequence[Node]], Prepare | None]


class Emission:
    """The tape of one program while it is made.

    A row of activations is quantised once for all that read it as a record: into one buffer for each width, so that a
    record is overwritten by the next value of that width, when those that read the last have run.
    """

    def __init__(
        self,
        request: CompileRequest,
        arena: Arena,
        regions: Mapping[ValueId, NDArray[np.uint8]],
        weights: PackedWeights,
        ops: Mapping[type[Op], CpuOp],
        *,
        n_threads: int,
        vector_bytes: int,
    ) -> None:
        self.tape = Tape()
        self.graph: Graph = request.graph
        self.bounds: Bounds = request.bounds
        self.n_threads = n_threads
        self.vector_bytes = vector_bytes
        self._arena = arena
        self._regions = regions
        self._weights = weights
        self._ops = ops
        self._consumers = request.graph.consumers()
        self._shared: dict[Hashable, NDArray[np.uint8]] = {}
        self._recorded: dict[int, ValueId] = {}

    # What there is.

    def spec(self, value_id: ValueId) -> TensorSpec:
        return self.graph.value(value_id).spec

    def address(self, value_id: ValueId) -> int:
        """Where a computed value begins."""
        return self._arena.address(value_id)

    def region(self, value_id: ValueId) -> int:
        """Where a KV region begins."""
        return int(self._regions[value_id].ctypes.data)

    def weight(self, value_id: ValueId, role: WeightRole) -> int:
        """Where a weight begins that is packed for this role."""
        return int(self._weights[self.graph.value(value_id).name, role].ctypes.data)

    def shared(self, key: Hashable, n_bytes: int) -> tuple[NDArray[np.uint8], bool]:
        """A buffer of at least `n_bytes` for all nodes that ask by this key, and whether it is a new one."""
        found = self._shared.get(key)
        if found is not None and found.nbytes >= n_bytes:
            return found, False
        self._shared[key] = self.tape.buffer(n_bytes)
        return self._shared[key], True

    # Records.

    def wants_record(self, value_id: ValueId) -> bool:
        """Whether a node reads the value as records."""
        readers = (self.graph.nodes[index] for index in self._consumers.get(value_id, ()))
        return any(
            node.inputs[0] == value_id and self._ops[type(node.op)].reads_records(self.graph.specs(node.inputs))
            for node in readers
            if type(node.op) in self._ops
        )

    def record_buffer(self, width: int) -> int:
        """Where the records of rows of this width are."""
        n_rows = self.bounds[Symbol.N_TOKENS] + _SPARE_ROWS
        buffer, _ = self.shared(("records", width), n_rows * QuantisedRow(width).stride_bytes)
        return int(buffer.ctypes.data)

    def is_recorded(self, value_id: ValueId) -> bool:
        """Whether the buffer of its width holds the records of this value, once the entries so far have run."""
        return self._recorded.get(self.spec(value_id).n_static_values()) == value_id

    def set_recorded(self, value_id: ValueId) -> None:
        """The entries so far write the records of this value."""
        self._recorded[self.spec(value_id).n_static_values()] = value_id


def width_of(spec: TensorSpec) -> int:
    """The last dimension."""
    return int(spec.shape[-1])


def rows_of(spec: TensorSpec) -> StepWord:
    """The word of the step that counts the rows of a computed value."""
    return StepWord.N_OUTPUTS if spec.shape[0] is Symbol.N_OUTPUTS else StepWord.N_TOKENS
