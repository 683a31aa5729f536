"""Runs one op on a backend, the way a plan does: assigned, placed in an arena, compiled.

Activations reach the op as rows of an embedding table, since a step has no float inputs; weights and KV regions are
given as packed bytes. Memory that holds nothing is poisoned with NaN, and the op works in place where it may.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minfer.backends import Backend, CompileRequest
from minfer.backends.reference import ReferenceBackend
from minfer.graph import Bounds, Graph, GraphBuilder, Node, StepInputs, Symbol, Value, ValueKind
from minfer.graph.ops import Op
from minfer.passes import PassContext
from minfer.passes.alias import alias
from minfer.passes.assign import assign
from minfer.passes.plan_memory import plan_memory
from minfer.quants import GGMLType, quantise


@dataclass(frozen=True)
class Packed:
    """A weight (any shape), or a KV region [n_cells, n_kv_heads, width], as packed bytes."""

    data: NDArray[np.uint8]
    shape: tuple[int, ...]
    ggml_type: GGMLType
    is_region: bool = False


@dataclass(frozen=True)
class Input:
    """An input of the step, int32."""

    name: str
    data: NDArray[np.int32]


Operand = NDArray[np.float32] | Packed | Input


@dataclass(frozen=True)
class Result:
    """What an op left behind: its outputs, and the bytes of the KV regions it touched."""

    outputs: list[NDArray[np.float32]]
    regions: list[NDArray[np.uint8]]


@dataclass(frozen=True)
class DictWeights:
    """Weights out of a dict."""

    arrays: Mapping[str, NDArray[np.uint8]]

    def packed(self, name: str) -> NDArray[np.uint8]:
        return self.arrays[name]

    def release(self, name: str) -> None:
        """Nothing is mapped."""


def f32(values: ArrayLike) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


def weight(values: ArrayLike, ggml_type: GGMLType = GGMLType.F32) -> Packed:
    """A weight. As float32 it may hold NaN and infinities."""
    array = f32(values)
    data = f32_bytes(array) if ggml_type is GGMLType.F32 else quantise(ggml_type, array)
    return Packed(data, array.shape, ggml_type)


def region(values: ArrayLike, ggml_type: GGMLType = GGMLType.F32) -> Packed:
    return replace(weight(values, ggml_type), is_region=True)


def index(name: str, values: ArrayLike) -> Input:
    return Input(name, np.asarray(values, np.int32))


def run_op(op: Op, *operands: Operand, backend: Backend | None = None, n_threads: int | None = None) -> Result:
    """Runs `op` on its operands."""
    runner = backend or ReferenceBackend()
    builder = GraphBuilder()
    values = [_operand(builder, f"x{i}", operand) for i, operand in enumerate(operands)]
    graph = _with_op(builder.build({}), op, values)
    inputs = _step_inputs(operands)
    context = PassContext((runner,), _bounds(operands, inputs))
    graph = plan_memory(alias(assign(graph, context), context), context)
    weights = {f"x{i}": operand for i, operand in enumerate(operands)}
    arrays = {name: data for name, operand in weights.items() if (data := _bytes(operand)) is not None}
    request = CompileRequest(
        graph, (range(len(graph.nodes)),), DictWeights(arrays), context.bounds, n_threads, poison=True
    )
    program = runner.compile(request)
    states = [(v.id, o.data) for v, o in zip(values, operands, strict=True) if isinstance(o, Packed) and o.is_region]
    for value_id, data in states:
        program.region(value_id)[:] = data.reshape(data.shape[0], -1)
    program.run(0, inputs, ())
    outputs = [program.read(value_id, inputs).copy() for value_id in graph.outputs.values()]
    return Result(outputs, [program.region(i).reshape(data.shape).copy() for i, data in states])


def run_one(op: Op, *operands: Operand, **options: Any) -> NDArray[np.float32]:
    """The only output of `op`."""
    (output,) = run_op(op, *operands, **options).outputs
    return output


def _operand(builder: GraphBuilder, name: str, operand: Operand) -> Value:
    if isinstance(operand, Input):
        return builder.input(operand.name)
    if isinstance(operand, Packed):
        if operand.is_region:
            return builder.kv_region(name, operand.shape[1], operand.shape[2], operand.ggml_type)
        return builder.weight(name, operand.shape, operand.ggml_type)
    n_rows, width = operand.shape[0], math.prod(operand.shape[1:])
    table = builder.weight(name, (n_rows, width), GGMLType.F32)
    x = builder.embedding(builder.input("tokens"), table, f"{name}.rows")
    return x if operand.ndim == 2 else builder.reshape(x, (Symbol.N_TOKENS, *operand.shape[1:]), f"{name}.shaped")


def _bytes(operand: Operand) -> NDArray[np.uint8] | None:
    if isinstance(operand, Input):
        return None
    if isinstance(operand, Packed):
        return None if operand.is_region else operand.data
    return f32_bytes(operand.reshape(operand.shape[0], -1))


def f32_bytes(array: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)


def _with_op(graph: Graph, op: Op, values: Sequence[Value]) -> Graph:
    specs = op.output_specs([value.spec for value in values])
    first = graph.next_id()
    outputs = [Value(first + i, f"y{i}", ValueKind.COMPUTED, spec) for i, spec in enumerate(specs)]
    node = Node(op, tuple(value.id for value in values), tuple(value.id for value in outputs), "op")
    graph = graph.with_nodes([*graph.nodes, node], outputs)
    return replace(graph, outputs=MappingProxyType({value.name: value.id for value in outputs}))


def _step_inputs(operands: Sequence[Operand]) -> StepInputs:
    given = {operand.name: operand.data for operand in operands if isinstance(operand, Input)}
    activations = [operand for operand in operands if isinstance(operand, np.ndarray)]
    n_tokens = activations[0].shape[0] if activations else given["tokens"].size
    arrays = {
        "tokens": np.arange(n_tokens, dtype=np.int32),
        "positions": np.zeros(n_tokens, np.int32),
        "cells": np.zeros(n_tokens, np.int32),
        "spans": np.tile(np.array([0, 1], np.int32), (n_tokens, 1)),
        "pages": np.zeros(1, np.int32),
        "output_rows": np.arange(n_tokens, dtype=np.int32),
    }
    return StepInputs(**(arrays | given))


def _bounds(operands: Sequence[Operand], inputs: StepInputs) -> Bounds:
    n_cells = [o.shape[0] for o in operands if isinstance(o, Packed) and o.is_region]
    return {**inputs.sizes(), Symbol.N_CELLS: max(n_cells, default=64)}
