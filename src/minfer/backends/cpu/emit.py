"""From nodes to entries of the tape: one function an op.

Consecutive nodes that run as one are a *unit*; where a trace is wanted, units are run one by one. A row of
activations is quantised once for all the matmuls that read it: into one buffer for each width, so that a record is
overwritten by the next row of that width, when the matmuls of the last have run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import Arena
from minfer.backends.base import CompileRequest
from minfer.backends.cpu.activations import QuantisedRow
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.emit_matmul import Operands, add_matmul, add_matmul_float
from minfer.backends.cpu.kernels import (
    attention,
    elementwise,
    embedding,
    kv_store,
    quantise,
    rms_norm,
    rope,
    rope_store,
)
from minfer.backends.cpu.kernels.elementwise import Elementwise, trace_elementwise
from minfer.backends.cpu.kernels.matmul import MatMulShape
from minfer.backends.cpu.kernels.matmul_float import FLOAT_TYPES, FloatShape
from minfer.backends.cpu.kernels.select_rows import trace_select_rows
from minfer.backends.cpu.pack import panel_format
from minfer.backends.cpu.tape import Tape
from minfer.backends.cpu.weights import WeightJob, WeightUse
from minfer.errors import GraphError
from minfer.graph import Graph, Node, StepInputs, Symbol, TensorSpec, ValueId, ValueKind, ops
from minfer.graph.ops import ActivationKind

Weights = Mapping[tuple[str, WeightUse], NDArray[np.uint8]]
Prepare = Callable[[StepInputs], None]

_SPARE_ROWS = 16
"""Rows that a last tile may read beyond the largest step; their results are not stored."""


@dataclass(frozen=True)
class Unit:
    """Nodes that run together: what the host does first, and their entries."""

    nodes: range
    entries: range
    prepare: Prepare | None = None


class Emitter:
    """Emits the tape of one program."""

    def __init__(
        self,
        request: CompileRequest,
        arena: Arena,
        regions: Mapping[ValueId, NDArray[np.uint8]],
        *,
        n_threads: int,
        vector_bytes: int,
    ) -> None:
        self.tape = Tape()
        self._request = request
        self._graph: Graph = request.graph
        self._arena = arena
        self._regions = regions
        self._n_threads = n_threads
        self._vector_bytes = vector_bytes
        self._weights: Weights = {}
        self._max_rows = request.bounds[Symbol.N_TOKENS]
        self._records: dict[int, NDArray[np.uint8]] = {}
        self._recorded: dict[int, ValueId | None] = {}
        self._tables: dict[tuple[tuple[float, ...], float], tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        self._partials: NDArray[np.uint8] | None = None

    def weight_jobs(self) -> Iterator[WeightJob]:
        """What has to be packed."""
        for segment in self._request.segments:
            for index in segment:
                node = self._graph.nodes[index]
                for value_id in node.inputs:
                    value = self._graph.value(value_id)
                    if value.kind is ValueKind.WEIGHT:
                        yield WeightJob(value, WeightUse.PANELS if len(value.spec.shape) == 2 else WeightUse.VECTOR)

    def emit_segment(self, segment: range, weights: Weights) -> list[Unit]:
        """The units of a segment, in order."""
        self._weights = weights
        units: list[Unit] = []
        for index in segment:
            if units and index in units[-1].nodes:
                continue
            nodes = self._graph.nodes[index : min(index + 3, segment.stop)]
            first = len(self.tape.entries)
            if self._is_rope_store(nodes):
                prepare = self._rope_store(*nodes)
            else:
                nodes = nodes[:1]
                prepare = self._emit(nodes[0])
            for node in nodes:
                if isinstance(node.op, (ops.RMSNorm, ops.AddRMSNorm)):
                    self._remember(node)
            units.append(Unit(range(index, index + len(nodes)), range(first, len(self.tape.entries)), prepare))
        return units

    def _is_rope_store(self, nodes: Sequence[Node]) -> bool:
        """Whether the nodes turn queries and keys by one table, in place, and store those keys: then no chunk reads
        what another writes, and one entry does."""
        if [type(node.op) for node in nodes] != [ops.Rope, ops.Rope, ops.KVStore]:
            return False
        in_place = all(self._graph.storage(n.inputs[0]) == self._graph.storage(n.outputs[0]) for n in nodes[:2])
        return in_place and nodes[0].op == nodes[1].op and nodes[2].inputs[0] == nodes[1].outputs[0]

    def _emit(self, node: Node) -> Prepare | None:
        match node.op:
            case ops.Embedding():
                self._embedding(node)
            case ops.Reshape():
                if self._graph.storage(node.outputs[0]) != self._graph.storage(node.inputs[0]):
                    raise GraphError(f"{node.name}: a reshape of what lives in other storage")
            case ops.RMSNorm() | ops.AddRMSNorm():
                self._norm(node, node.op)
            case ops.MatMul():
                bias = node.inputs[2] if node.op.has_bias else None
                self._matmul(node.inputs[0], node.inputs[1], bias, node.outputs[0], barrier=True)
            case ops.MatMulGroup():
                pairs = node.op.split_inputs(len(node.inputs))
                for position, ((w, b), output) in enumerate(zip(pairs, node.outputs, strict=True)):
                    bias = None if b is None else node.inputs[b]
                    is_last = position == len(pairs) - 1
                    self._matmul(node.inputs[0], node.inputs[w], bias, output, barrier=is_last)
            case ops.GatedMatMul():
                x, gate, up = node.inputs
                self._matmul(x, gate, None, node.outputs[0], barrier=True, up=up, kind=node.op.activation)
            case ops.Rope():
                return self._rope(node, node.op)
            case ops.KVStore():
                self._kv_store(node)
            case ops.Attention():
                self._attention(node, node.op)
            case ops.SelectRows():
                self._select_rows(node)
            case ops.Add():
                self._elementwise(node, Elementwise.ADD, None)
            case ops.Multiply():
                self._elementwise(node, Elementwise.MULTIPLY, None)
            case ops.Activation():
                self._elementwise(node, Elementwise.ACTIVATION, node.op.activation)
            case ops.GatedActivation():
                self._elementwise(node, Elementwise.GATED, node.op.activation)
            case _:
                raise GraphError(f"{node.name}: {node.op.kind} is not emitted by this backend")
        return None

    # One method an op.

    def _embedding(self, node: Node) -> None:
        table = self._graph.value(node.inputs[1])
        ggml_type, width = table.spec.ggml_type, _width(table.spec)
        if ggml_type in FLOAT_TYPES:
            shape = FloatShape(ggml_type, width, StepWord.N_TOKENS)
            kernel = self.tape.kernel(embedding.trace_embedding_float, shape)
        else:
            panel = panel_format(ggml_type)
            kernel = self.tape.kernel(embedding.trace_embedding, panel, width, key=f"{panel.name} {width}")
        arguments = (self._weight(table.id, WeightUse.PANELS), self._address(node.outputs[0]))
        self.tape.add(
            kernel, arguments, rows=StepWord.N_TOKENS, rows_per_chunk=1, scratch_bytes=embedding.SCRATCH_BYTES
        )

    def _norm(self, node: Node, op: ops.RMSNorm | ops.AddRMSNorm) -> None:
        adds = isinstance(op, ops.AddRMSNorm)
        x, weight = node.inputs[0], node.inputs[2 if adds else 1]
        y = node.outputs[1 if adds else 0]
        spec = self._spec(y)
        width = _width(spec)
        shape = rms_norm.NormShape(
            width=width,
            eps=op.eps,
            rows=_rows(spec),
            n_groups=spec.n_static_values() // width,
            adds=adds,
            quantised=self._wants_record(y),
        )
        arguments = (
            self._address(x),
            self._address(node.inputs[1]) if adds else 0,
            self._weight(weight, WeightUse.VECTOR),
            self._address(node.outputs[0]) if adds else 0,
            self._address(y),
            self._record_buffer(width).ctypes.data if shape.quantised else 0,
        )
        kernel = self.tape.kernel(rms_norm.trace_rms_norm, shape)
        self.tape.add(kernel, arguments, rows=shape.rows, rows_per_chunk=rms_norm.ROWS_PER_CHUNK)

    def _matmul(
        self,
        x: ValueId,
        weight: ValueId,
        bias: ValueId | None,
        y: ValueId,
        *,
        barrier: bool,
        up: ValueId | None = None,
        kind: ActivationKind | None = None,
    ) -> None:
        spec = self._spec(weight)
        n_rows, n_columns = spec.resolve({})
        is_float = spec.ggml_type in FLOAT_TYPES
        if not is_float:
            self._record(x)
        operands = Operands(
            weights=(self._weight(weight, WeightUse.PANELS), 0 if up is None else self._weight(up, WeightUse.PANELS)),
            x=self._address(x) if is_float else self._records[n_columns].ctypes.data,
            y=self._address(y),
            bias=0 if bias is None else self._weight(bias, WeightUse.VECTOR),
            n_rows=n_rows,
        )
        rows, has_bias = _rows(self._spec(y)), bias is not None
        if is_float:
            shape = FloatShape(spec.ggml_type, n_columns, rows, has_bias, kind)
            add_matmul_float(self.tape, shape, operands, n_threads=self._n_threads, barrier=barrier)
        else:
            panel = panel_format(spec.ggml_type)
            quantised = MatMulShape(panel, n_columns, rows, has_bias, kind)
            add_matmul(self.tape, quantised, operands, n_threads=self._n_threads, barrier=barrier)

    def _rope(self, node: Node, op: ops.Rope) -> Prepare | None:
        prepare, tables = self._rope_tables(op)
        shape = self._rope_shape(node, op)
        arguments = (self._address(node.inputs[0]), self._address(node.outputs[0]), *tables)
        self.tape.add(self.tape.kernel(rope.trace_rope, shape), arguments, rows=StepWord.N_TOKENS, rows_per_chunk=1)
        return prepare

    def _rope_shape(self, node: Node, op: ops.Rope) -> rope.RopeShape:
        _, n_heads, head_dim = self._spec(node.inputs[0]).shape
        return rope.RopeShape(op.style, int(n_heads), int(head_dim), op.n_rot)

    def _rope_tables(self, op: ops.Rope) -> tuple[Prepare | None, tuple[int, int]]:
        """What fills the tables of cos and sin, where no node before does, and their addresses."""
        key = (op.frequencies, op.magnitude)
        prepare: Prepare | None = None
        if key not in self._tables:
            n_floats = self._max_rows * (op.n_rot // 2)
            cos, sin = (self.tape.buffer(4 * n_floats).view(np.float32).reshape(self._max_rows, -1) for _ in range(2))
            self._tables[key] = (cos, sin)

            def fill(inputs: StepInputs) -> None:
                rope.rope_table(op.frequencies, op.magnitude, inputs.positions, cos, sin)

            prepare = fill
        cos, sin = self._tables[key]
        return prepare, (cos.ctypes.data, sin.ctypes.data)

    def _rope_store(self, of_q: Node, of_k: Node, store: Node) -> Prepare | None:
        op = of_q.op
        assert isinstance(op, ops.Rope)
        prepare, tables = self._rope_tables(op)
        shapes = (self._rope_shape(of_q, op), self._rope_shape(of_k, op), self._store_shape(store))
        _, v, _, *regions = store.inputs
        arguments = (
            *(self._address(i) for node in (of_q, of_k) for i in (node.inputs[0], node.outputs[0])),
            self._address(v),
            *tables,
            *(self._regions[i].ctypes.data for i in regions),
        )
        self.tape.add(
            self.tape.kernel(rope_store.trace_rope_store, *shapes),
            arguments,
            rows=StepWord.N_TOKENS,
            rows_per_chunk=rope_store.ROWS_PER_CHUNK,
        )
        return prepare

    def _kv_store(self, node: Node) -> None:
        k, v, _, *regions = node.inputs
        arguments = (self._address(k), self._address(v), *(self._regions[i].ctypes.data for i in regions))
        self.tape.add(
            self.tape.kernel(kv_store.trace_kv_store, self._store_shape(node)),
            arguments,
            rows=StepWord.N_TOKENS,
            rows_per_chunk=1,
        )

    def _store_shape(self, node: Node) -> kv_store.StoreShape:
        k, v, _, k_region, v_region = node.inputs
        _, n_kv_heads, head_dim = self._spec(k).shape
        types = (self._spec(k_region).ggml_type, self._spec(v_region).ggml_type)
        return kv_store.StoreShape(int(n_kv_heads), int(head_dim), _width(self._spec(v)), *types)

    def _attention(self, node: Node, op: ops.Attention) -> None:
        q, k_region, v_region, _, _ = node.inputs
        _, n_heads, head_dim = self._spec(q).shape
        _, n_kv_heads, value_dim = self._spec(v_region).shape
        shape = attention.AttentionShape(
            n_heads=int(n_heads),
            n_kv_heads=int(n_kv_heads),
            head_dim=int(head_dim),
            value_dim=int(value_dim),
            k_type=self._spec(k_region).ggml_type,
            v_type=self._spec(v_region).ggml_type,
            scale=op.scale,
            window=op.window,
            vector_bytes=self._vector_bytes,
        )
        max_pages = self._request.bounds[Symbol.N_PAGES]
        partials_bytes = shape.partials_bytes(max_pages)
        if self._partials is None or self._partials.nbytes < partials_bytes:
            self._partials = self.tape.buffer(partials_bytes)
        arguments = (
            self._address(q),
            *(self._regions[i].ctypes.data for i in (k_region, v_region)),
            self._address(node.outputs[0]),
            self._partials.ctypes.data,
            max_pages,
        )
        few = attention.MAX_SPLIT_ROWS
        for trace, rows_per_chunk, n_parts, min_rows, max_rows, scratch in (
            (
                attention.trace_attention_split,
                1,
                shape.n_kv_heads * attention.N_SPLITS,
                1,
                few,
                shape.split_scratch_bytes,
            ),
            (attention.trace_attention_combine, 1, shape.n_kv_heads, 1, few, shape.split_scratch_bytes),
            (
                attention.trace_attention_tokens,
                1,
                shape.n_kv_heads,
                few + 1,
                attention.MAX_TOKEN_ROWS,
                shape.split_scratch_bytes,
            ),
            (
                attention.trace_attention_tiles,
                attention.TILE_TOKENS,
                shape.n_kv_heads,
                attention.MAX_TOKEN_ROWS + 1,
                1 << 40,
                shape.tiles_scratch_bytes,
            ),
        ):
            self.tape.add(
                self.tape.kernel(trace, shape),
                arguments,
                rows=StepWord.N_TOKENS,
                rows_per_chunk=rows_per_chunk,
                n_parts=n_parts,
                min_rows=min_rows,
                max_rows=max_rows,
                scratch_bytes=scratch,
            )

    def _select_rows(self, node: Node) -> None:
        width = self._spec(node.inputs[0]).n_static_values()
        arguments = (self._address(node.inputs[0]), self._address(node.outputs[0]))
        self.tape.add(self.tape.kernel(trace_select_rows, width), arguments, rows=StepWord.N_OUTPUTS, rows_per_chunk=1)

    def _elementwise(self, node: Node, kind: Elementwise, activation: ActivationKind | None) -> None:
        spec = self._spec(node.outputs[0])
        rows = _rows(spec)
        operands = [self._address(i) for i in node.inputs]
        arguments = (operands[0], operands[-1], self._address(node.outputs[0]))
        kernel = self.tape.kernel(trace_elementwise, kind, activation, spec.n_static_values(), rows)
        self.tape.add(kernel, arguments, rows=rows, rows_per_chunk=elementwise.ROWS_PER_CHUNK)

    # Records: quantised rows.

    def _wants_record(self, value_id: ValueId) -> bool:
        """Whether a matmul over quantised weights reads the value."""
        for index in self._graph.consumers().get(value_id, ()):
            node = self._graph.nodes[index]
            is_product = isinstance(node.op, (ops.MatMul, ops.MatMulGroup, ops.GatedMatMul))
            if is_product and self._spec(node.inputs[1]).ggml_type not in FLOAT_TYPES:
                return True
        return False

    def _remember(self, node: Node) -> None:
        """The norm has made a record of its result."""
        y = node.outputs[-1]
        if self._wants_record(y):
            self._recorded[_width(self._spec(y))] = y

    def _record(self, x: ValueId) -> None:
        """Makes sure that the buffer of this width holds the record of x."""
        spec = self._spec(x)
        width = spec.n_static_values()
        if self._recorded.get(width) == x:
            return
        rows = _rows(spec)
        arguments = (self._address(x), self._record_buffer(width).ctypes.data)
        kernel = self.tape.kernel(quantise.trace_quantise, width, rows)
        self.tape.add(kernel, arguments, rows=rows, rows_per_chunk=quantise.ROWS_PER_CHUNK)
        self._recorded[width] = x

    def _record_buffer(self, width: int) -> NDArray[np.uint8]:
        if width not in self._records:
            n_rows = self._max_rows + _SPARE_ROWS
            self._records[width] = self.tape.buffer(n_rows * QuantisedRow(width).stride_bytes)
        return self._records[width]

    # Addresses.

    def _spec(self, value_id: ValueId) -> TensorSpec:
        return self._graph.value(value_id).spec

    def _address(self, value_id: ValueId) -> int:
        return self._arena.address(value_id)

    def _weight(self, value_id: ValueId, use: WeightUse) -> int:
        return int(self._weights[self._graph.value(value_id).name, use].ctypes.data)


def _width(spec: TensorSpec) -> int:
    return int(spec.shape[-1])


def _rows(spec: TensorSpec) -> StepWord:
    return StepWord.N_OUTPUTS if spec.shape[0] is Symbol.N_OUTPUTS else StepWord.N_TOKENS
