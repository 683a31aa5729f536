"""Small graphs to look at, to break and to rewrite, and what is needed to run them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.backends import Backend, CompileRequest
from minfer.backends.reference import ReferenceBackend
from minfer.backends.reference.program import ReferenceProgram
from minfer.graph import (
    Bounds,
    Graph,
    GraphBuilder,
    MemoryPlan,
    Node,
    Placement,
    StepInputs,
    Symbol,
    TensorSpec,
    Value,
    ValueId,
    ValueKind,
)
from minfer.graph.ops import ActivationKind, Op, Rope, RopeStyle
from minfer.passes import PassContext
from minfer.quants import GGMLType
from minfer.sampling import NumpyVocabularyOps

BOUNDS: Bounds = {Symbol.N_TOKENS: 8, Symbol.N_OUTPUTS: 8, Symbol.N_PAGES: 2, Symbol.N_CELLS: 128}
CONTEXT = PassContext((ReferenceBackend(),), BOUNDS)
WIDTH, N_VOCAB = 64, 20


def dense_graph(n_layers: int = 2) -> Graph:
    """A decoder of the usual make, with 4 query heads on 2 KV heads of width 16."""
    b = GraphBuilder()
    rope = Rope(RopeStyle.INTERLEAVED, (1.0, 0.1, 0.01))

    def linear(x: Value, name: str, n_rows: int, *, bias: bool = False) -> Value:
        w = b.weight(f"{name}.weight", (n_rows, x.spec.n_static_values()), GGMLType.F32)
        return b.matmul(x, w, b.weight(f"{name}.bias", (n_rows,), GGMLType.F32) if bias else None, name)

    def norm(x: Value, name: str) -> Value:
        return b.rms_norm(x, b.weight(f"{name}.weight", (WIDTH,), GGMLType.F32), 1e-6, name)

    x = b.embedding(b.input("tokens"), b.weight("table", (N_VOCAB, WIDTH), GGMLType.F32), "embedding")
    for i in range(n_layers):
        with b.layer(i):
            normed = norm(x, f"{i}.attn_norm")
            q = b.split_heads(linear(normed, f"{i}.q", 64, bias=True), 4, f"{i}.q_heads")
            k = b.split_heads(linear(normed, f"{i}.k", 32), 2, f"{i}.k_heads")
            v = b.split_heads(linear(normed, f"{i}.v", 32), 2, f"{i}.v_heads")
            q = b.rope(q, b.input("positions"), rope, f"{i}.q_rope")
            k = b.rope(k, b.input("positions"), rope, f"{i}.k_rope")
            keys, values = (b.kv_region(f"{i}.{name}_cache", 2, 16, GGMLType.F32) for name in "kv")
            b.kv_store(k, v, b.input("cells"), keys, values, f"{i}.kv_store")
            heads = b.attention(q, keys, values, scale=0.25, window=None, name=f"{i}.heads")
            attended = linear(b.merge_heads(heads, f"{i}.attention"), f"{i}.attn_output", WIDTH)
            x = b.add(x, attended, f"{i}.middle")
            normed = norm(x, f"{i}.ffn_norm")
            gate = b.activation(linear(normed, f"{i}.gate", 96), ActivationKind.SILU, f"{i}.activated")
            gated = b.multiply(gate, linear(normed, f"{i}.up", 96), f"{i}.gated")
            x = b.add(x, linear(gated, f"{i}.down", WIDTH), f"{i}.hidden")
    rows = b.select_rows(x, b.input("output_rows"), "rows")
    return b.build({"logits": linear(norm(rows, "output_norm"), "output", N_VOCAB)})


def node(graph: Graph, name: str) -> Node:
    (found,) = (node for node in graph.nodes if node.name == name)
    return found


def value(graph: Graph, name: str) -> Value:
    (found,) = (value for value in graph.values.values() if value.name == name)
    return found


def ids(graph: Graph, *names: str) -> tuple[ValueId, ...]:
    return tuple(value(graph, name).id for name in names)


def with_node(graph: Graph, name: str, /, **changes: Any) -> Graph:
    """The graph with one node changed; its values stay."""
    nodes = tuple(replace(node, **changes) if node.name == name else node for node in graph.nodes)
    return replace(graph, nodes=nodes)


def with_value(graph: Graph, name: str, /, **changes: Any) -> Graph:
    changed = replace(value(graph, name), **changes)
    return replace(graph, values=MappingProxyType({**graph.values, changed.id: changed}))


def moved(graph: Graph, name: str, index: int) -> Graph:
    """The graph with a node moved to another place in the order."""
    nodes = [other for other in graph.nodes if other.name != name]
    nodes.insert(index, node(graph, name))
    return replace(graph, nodes=tuple(nodes))


def with_aliases(graph: Graph, **aliases: str) -> Graph:
    """The graph in which each value lives in the storage of another."""
    by_id = {value(graph, name).id: value(graph, other).id for name, other in aliases.items()}
    return replace(graph, aliases=MappingProxyType(by_id))


def with_memory(graph: Graph, arena_bytes: int, **places: tuple[int, int]) -> Graph:
    """The graph with (offset, n_bytes) for its values, in one arena of the reference backend."""
    placements = {value(graph, name).id: Placement(*place) for name, place in places.items()}
    plan = MemoryPlan(MappingProxyType({"reference": arena_bytes}), MappingProxyType(placements))
    return replace(graph, memory=plan)


def plan_without_reuse(graph: Graph, bounds: Bounds = BOUNDS) -> Graph:
    """Every value in a place of its own, one after the other, in the arena of the backend that makes it."""
    ends: dict[str, int] = {}
    placements = {}
    for made in graph.nodes:
        for value_id in made.outputs:
            n_bytes = -(-graph.value(value_id).spec.n_bytes(bounds) // 64) * 64
            offset = ends.get(str(made.backend), 0)
            placements[value_id] = Placement(offset, n_bytes)
            ends[str(made.backend)] = offset + n_bytes
    plan = MemoryPlan(MappingProxyType(ends), MappingProxyType(placements))
    return replace(graph, aliases=MappingProxyType({}), memory=plan)


class RandomWeights:
    """Float32 weights that depend on their name only."""

    def __init__(self, graph: Graph) -> None:
        self._specs: Mapping[str, TensorSpec] = {v.name: v.spec for v in graph.of_kind(ValueKind.WEIGHT)}

    def packed(self, name: str) -> NDArray[np.uint8]:
        shape = self._specs[name].resolve({})
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32).view(np.uint8)

    def release(self, name: str) -> None:
        """Nothing is mapped."""


def step_inputs(tokens: Sequence[int] = (3, 1, 4, 1, 5), output_rows: Sequence[int] = (0, 2, 4)) -> StepInputs:
    """The first step of one sequence, whose first page is page 1."""
    n_tokens = len(tokens)
    positions = np.arange(n_tokens, dtype=np.int32)
    return StepInputs(
        tokens=np.asarray(tokens, np.int32),
        positions=positions,
        cells=positions + 64,
        spans=np.stack([np.zeros(n_tokens, np.int32), positions + 1], axis=1),
        pages=np.array([1], np.int32),
        output_rows=np.asarray(output_rows, np.int32),
    )


def run_planned(graph: Graph, *, poison: bool, inputs: StepInputs | None = None) -> dict[str, NDArray[np.float32]]:
    """The outputs of a graph with a memory plan, all on the reference backend."""
    step = inputs or step_inputs()
    request = CompileRequest(graph, (range(len(graph.nodes)),), RandomWeights(graph), BOUNDS, poison=poison)
    program = ReferenceBackend().compile(request)
    program.run(0, step, ())
    return {name: program.read(value_id, step).copy() for name, value_id in graph.outputs.items()}


@dataclass(frozen=True)
class PartialBackend:
    """The reference backend under another name and with only some of its ops."""

    name: str
    ops: frozenset[type[Op]]

    def refusal(self, op: Op, inputs: Sequence[TensorSpec]) -> str | None:
        if type(op) not in self.ops:
            return f"{self.name} has no {op.kind}"
        return ReferenceBackend().refusal(op, inputs)

    def compile(self, request: CompileRequest) -> ReferenceProgram:
        return ReferenceProgram(request, self.name, 1 << 28)

    def vocabulary_ops(self) -> NumpyVocabularyOps:
        return NumpyVocabularyOps()


def partial_backend(name: str, *ops: type[Op]) -> Backend:
    return PartialBackend(name, frozenset(ops))
