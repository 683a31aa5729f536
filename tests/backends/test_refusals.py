"""What backends refuse of weights and state, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from minfer.backends import Backend
from minfer.backends.cpu import CpuBackend
from minfer.backends.cpu.ops import OPS as CPU_OPS
from minfer.backends.reference import ReferenceBackend
from minfer.backends.reference.kernels import KERNELS
from minfer.backends.refusals import refusal_of_storage
from minfer.errors import GraphError, UnsupportedError
from minfer.graph import GraphBuilder, Symbol, TensorSpec, verify
from minfer.graph.ops import OPS, MatMul, Op, RMSNorm, WeightRole
from minfer.passes import PassContext
from minfer.passes.assign import assign
from minfer.quants import GGMLType
from small_graphs import BOUNDS

BACKENDS = (ReferenceBackend(), CpuBackend())
X = TensorSpec((Symbol.N_TOKENS, 64))


@dataclass(frozen=True)
class Stacked(Op):
    """An op with a weight of three dimensions that it says nothing of."""

    def output_specs(self, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return (inputs[0],)


def test_both_backends_have_every_op_but_those_that_the_plan_runs() -> None:
    mine = {op for op in OPS if not op.is_transfer}
    assert set(CPU_OPS) == set(KERNELS) == mine
    assert all(each.op is op for op, each in CPU_OPS.items())


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.Q4_K, GGMLType.I32], ids=lambda t: t.name)
def test_weights_of_three_dimensions(backend: Backend, ggml_type: GGMLType) -> None:
    """Whatever an op's own checks let pass."""
    stack = TensorSpec((4, 16, 256), ggml_type)
    assert backend.refusal(MatMul(), (X, stack)) == f"a matrix of weights can't have 3 dimensions: {stack}"
    assert backend.refusal(RMSNorm(0.1), (X, stack)) == f"a vector of weights can't have 3 dimensions: {stack}"


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_types_are_checked_in_every_role(backend: Backend) -> None:
    matrix, bias = TensorSpec((16, 64)), TensorSpec((16,), GGMLType.I32)
    assert backend.refusal(MatMul(True), (X, matrix, bias)) == "a vector of weights can't be I32"
    assert backend.refusal(MatMul(), (X, TensorSpec((16, 64), GGMLType.I32))) == "a matrix of weights can't be I32"


def test_a_role_that_a_backend_does_not_know() -> None:
    reason = refusal_of_storage(MatMul(), (X, TensorSpec((16, 64))), {WeightRole.VECTOR: [GGMLType.F32]}, ())
    assert reason == "weights can't be a matrix: f32[16, 64]"


def test_an_op_must_say_what_it_does_with_a_weight() -> None:
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    graph = b.build({"logits": b.apply(Stacked(), [x, b.weight("experts", (4, 16, 64), GGMLType.Q8_0)], "y")})
    with pytest.raises(GraphError, match="y reads experts, and Stacked takes no weight there"):
        verify(graph)
    with pytest.raises(UnsupportedError, match=r"Stacked \(y\).*there is no kernel for Stacked"):
        assign(graph, PassContext(BACKENDS, BOUNDS))
