"""Declares graphs: `apply` for any op, and a method for each of the usual ones.

Shapes are checked as nodes are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from minfer.errors import GraphError
from minfer.graph import ops
from minfer.graph.inputs import INPUT_SPECS
from minfer.graph.ir import Graph, Node, Value, ValueKind
from minfer.graph.specs import Dim, Shape, Symbol, TensorSpec
from minfer.quants import GGMLType


class GraphBuilder:
    """Builds one graph, front to back. Nodes added inside `with builder.layer(i):` belong to layer i."""

    def __init__(self) -> None:
        self._by_name: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._layer: int | None = None

    # Values that no node makes.

    def input(self, name: str) -> Value:
        """One of the inputs of a step (`graph/inputs.py`)."""
        if name not in INPUT_SPECS:
            raise GraphError(f"a step has no input {name}; it has {', '.join(INPUT_SPECS)}")
        return self._declare(name, ValueKind.INPUT, INPUT_SPECS[name])

    def weight(self, name: str, shape: tuple[int, ...], ggml_type: GGMLType) -> Value:
        """A tensor of the model file. Asking twice for one name gives one value (tied embeddings)."""
        return self._declare(name, ValueKind.WEIGHT, TensorSpec(shape, ggml_type))

    def kv_region(self, name: str, n_kv_heads: int, width: int, ggml_type: GGMLType) -> Value:
        """A persistent KV region [n_cells, n_kv_heads, width]."""
        return self._value(name, ValueKind.STATE, TensorSpec((Symbol.N_CELLS, n_kv_heads, width), ggml_type))

    # Ops.

    def apply(self, op: ops.Op, inputs: Sequence[Value], name: str) -> Value:
        """Any op with one output, which gets the name of its node. The methods below are shorter for some.

        Raises:
            GraphError: the inputs don't fit the op.
        """
        (output,) = self._add(op, inputs, (name,), name)
        return output

    def embedding(self, tokens: Value, table: Value, name: str) -> Value:
        return self.apply(ops.Embedding(), (tokens, table), name)

    def matmul(self, x: Value, weight: Value, bias: Value | None, name: str) -> Value:
        inputs = (x, weight) if bias is None else (x, weight, bias)
        return self.apply(ops.MatMul(has_bias=bias is not None), inputs, name)

    def rms_norm(self, x: Value, weight: Value, eps: float, name: str) -> Value:
        return self.apply(ops.RMSNorm(eps), (x, weight), name)

    def add(self, a: Value, b: Value, name: str) -> Value:
        return self.apply(ops.Add(), (a, b), name)

    def multiply(self, a: Value, b: Value, name: str) -> Value:
        return self.apply(ops.Multiply(), (a, b), name)

    def activation(self, x: Value, kind: ops.ActivationKind, name: str) -> Value:
        return self.apply(ops.Activation(kind), (x,), name)

    def reshape(self, x: Value, shape: Shape, name: str) -> Value:
        return self.apply(ops.Reshape(shape), (x,), name)

    def split_heads(self, x: Value, n_heads: int, name: str) -> Value:
        """[n, n_heads * width] -> [n, n_heads, width]"""
        width: Dim = x.spec.shape[1]
        if not isinstance(width, int) or width % n_heads:
            raise GraphError(f"{name}: {width} values can't be split into {n_heads} heads")
        return self.reshape(x, (x.spec.shape[0], n_heads, width // n_heads), name)

    def merge_heads(self, x: Value, name: str) -> Value:
        """[n, n_heads, width] -> [n, n_heads * width]"""
        return self.reshape(x, (x.spec.shape[0], x.spec.n_static_values()), name)

    def rope(self, x: Value, positions: Value, rope: ops.Rope, name: str) -> Value:
        return self.apply(rope, (x, positions), name)

    def kv_store(self, k: Value, v: Value, cells: Value, k_region: Value, v_region: Value, name: str) -> None:
        self._add(ops.KVStore(), (k, v, cells, k_region, v_region), (), name)

    def attention(
        self,
        q: Value,
        k_region: Value,
        v_region: Value,
        *,
        scale: float,
        window: int | None,
        softcap: float | None = None,
        name: str,
    ) -> Value:
        inputs = (q, k_region, v_region, self.input("pages"), self.input("spans"))
        return self.apply(ops.Attention(scale, window, softcap), inputs, name)

    def select_rows(self, x: Value, rows: Value, name: str) -> Value:
        return self.apply(ops.SelectRows(), (x, rows), name)

    # The rest.

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        self._layer, outer = index, self._layer
        try:
            yield
        finally:
            self._layer = outer

    def build(self, outputs: Mapping[str, Value]) -> Graph:
        """The finished graph; `outputs` are the values to hand back, by name."""
        return Graph(
            values=MappingProxyType({value.id: value for value in self._by_name.values()}),
            nodes=tuple(self._nodes),
            outputs=MappingProxyType({name: value.id for name, value in outputs.items()}),
        )

    def _declare(self, name: str, kind: ValueKind, spec: TensorSpec) -> Value:
        """A value that may be declared several times, always in the same way."""
        existing = self._by_name.get(name)
        if existing is None:
            return self._value(name, kind, spec)
        if (existing.kind, existing.spec) != (kind, spec):
            raise GraphError(f"{name} is declared as {existing.kind} {existing.spec} and as {kind} {spec}")
        return existing

    def _value(self, name: str, kind: ValueKind, spec: TensorSpec) -> Value:
        if name in self._by_name:
            raise GraphError(f"two values are named {name}")
        value = Value(len(self._by_name), name, kind, spec)
        self._by_name[name] = value
        return value

    def _add(self, op: ops.Op, inputs: Sequence[Value], output_names: tuple[str, ...], name: str) -> tuple[Value, ...]:
        specs = op.output_specs([value.spec for value in inputs])
        outputs = tuple(self._value(n, ValueKind.COMPUTED, s) for n, s in zip(output_names, specs, strict=True))
        node = Node(op, tuple(v.id for v in inputs), tuple(v.id for v in outputs), name, self._layer)
        self._nodes.append(node)
        return outputs
