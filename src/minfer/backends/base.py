"""What a backend is: something that compiles a graph's nodes to a program and runs it.

A backend says which ops it supports; it never runs one that it does not, and never in a slower way instead. All that
can be decided before the first token is decided in `compile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minfer.graph import Bounds, Graph, StepInputs, TensorSpec, ValueId
from minfer.graph.ops import Op
from minfer.hub import Progress
from minfer.sampling import VocabularyOps
from minfer.trace import Observer


class WeightSource(Protocol):
    """Where a backend reads the packed bytes of weights."""

    def packed(self, name: str) -> NDArray[np.uint8]:
        """The tensor as stored, read-only: shape (*leading_dims, row_bytes)."""
        ...

    def release(self, name: str) -> None:
        """Tells that the tensor's bytes will not be read again soon."""
        ...


@dataclass(frozen=True)
class CompileRequest:
    """What a backend compiles: its segments of a lowered graph, each a run of consecutive nodes."""

    graph: Graph
    segments: tuple[range, ...]
    weights: WeightSource
    bounds: Bounds
    n_threads: int | None = None
    """None: the backend decides"""
    progress: Progress | None = None
    """told about what takes long"""
    poison: bool = False
    """keep memory that holds nothing filled with NaN, to find reads of it; for tests"""


class Program(Protocol):
    """The compiled segments of one backend, with their arena and KV regions."""

    def run(self, segment: int, inputs: StepInputs, observers: Sequence[Observer]) -> None:
        """Runs one segment."""
        ...

    def read(self, value_id: ValueId, inputs: StepInputs) -> NDArray[Any]:
        """A value that the program made, for this step's sizes: a view, valid until its storage is reused."""
        ...

    def write(self, value_id: ValueId, array: NDArray[Any]) -> None:
        """Puts a value that another backend made into this program's memory."""
        ...

    def region(self, value_id: ValueId) -> NDArray[np.uint8]:
        """The bytes of a KV region, a writable view: (n_cells, bytes of a cell)."""
        ...

    def close(self) -> None:
        """Gives memory and threads back."""
        ...


class Backend(Protocol):
    """A way to run graphs."""

    @property
    def name(self) -> str: ...

    def refusal(self, op: Op, inputs: Sequence[TensorSpec]) -> str | None:
        """Why the backend can't run this op on these inputs, or None where it can."""
        ...

    def compile(self, request: CompileRequest) -> Program:
        """Compiles the backend's segments.

        Raises:
            UnsupportedError: for anything in the request that the backend can't do, by name.
        """
        ...

    def vocabulary_ops(self) -> VocabularyOps:
        """The passes over the vocabulary that samplers need: the same results from every backend.

        What it gives is meant to be kept and shared; giving it may take compiling.
        """
        ...
