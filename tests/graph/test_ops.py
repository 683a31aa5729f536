"""Every op's shapes, and everything that it refuses."""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass

import pytest

from minfer.errors import GraphError
from minfer.graph import Symbol, TensorSpec, ops
from minfer.graph.ops import OPS, ActivationKind, Op, RopeStyle
from minfer.quants import GGMLType

N, OUT, PAGES, CELLS = Symbol.N_TOKENS, Symbol.N_OUTPUTS, Symbol.N_PAGES, Symbol.N_CELLS
F16, I32, Q8_0 = GGMLType.F16, GGMLType.I32, GGMLType.Q8_0
SILU = ActivationKind.SILU


def f(*shape: int | Symbol) -> TensorSpec:
    return TensorSpec(shape)


def i(*shape: int | Symbol) -> TensorSpec:
    return TensorSpec(shape, I32)


def t(ggml_type: GGMLType, *shape: int | Symbol) -> TensorSpec:
    return TensorSpec(shape, ggml_type)


ROPE = ops.Rope(RopeStyle.INTERLEAVED, (1.0, 0.1))
ATTENTION = ops.Attention(0.5)
STORE = (f(N, 2, 8), f(N, 2, 6), i(N), f(CELLS, 2, 8), t(F16, CELLS, 2, 6))
READ = (f(N, 4, 8), f(CELLS, 2, 8), t(F16, CELLS, 2, 6), i(PAGES), i(N, 2))

FITTING: list[tuple[Op, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]] = [
    (ops.Embedding(), (i(N), t(Q8_0, 100, 64)), (f(N, 64),)),
    (ops.MatMul(), (f(N, 64), t(Q8_0, 10, 64)), (f(N, 10),)),
    (ops.MatMul(has_bias=True), (f(OUT, 64), f(10, 64), f(10)), (f(OUT, 10),)),
    (ops.MatMulGroup((True, False)), (f(N, 64), f(10, 64), t(Q8_0, 20, 64), f(10)), (f(N, 10), f(N, 20))),
    (ops.MatMulGroup((False, True)), (f(N, 64), f(10, 64), t(Q8_0, 20, 64), f(20)), (f(N, 10), f(N, 20))),
    (ops.GatedMatMul(SILU), (f(N, 64), t(Q8_0, 10, 64), f(10, 64)), (f(N, 10),)),
    (ops.RMSNorm(0.1), (f(N, 64), f(64)), (f(N, 64),)),
    (ops.RMSNorm(0.1), (f(N, 4, 16), t(F16, 16)), (f(N, 4, 16),)),
    (ops.AddRMSNorm(0.1), (f(N, 64), f(N, 64), f(64)), (f(N, 64), f(N, 64))),
    (ops.LayerNorm(0.1), (f(N, 64), f(64)), (f(N, 64),)),
    (ops.LayerNorm(0.1, has_bias=True), (f(N, 4, 16), f(16), f(16)), (f(N, 4, 16),)),
    (ops.Softcap(1.5), (f(N, 64),), (f(N, 64),)),
    (ops.Add(), (f(N, 64), f(N, 64)), (f(N, 64),)),
    (ops.Multiply(), (f(N, 4, 16), f(N, 4, 16)), (f(N, 4, 16),)),
    (ops.Activation(SILU), (f(N, 64),), (f(N, 64),)),
    (ops.GatedActivation(SILU), (f(N, 64), f(N, 64)), (f(N, 64),)),
    (ops.Reshape((N, 4, 16)), (f(N, 64),), (f(N, 4, 16),)),
    (ops.Reshape((OUT, 64)), (f(OUT, 4, 16),), (f(OUT, 64),)),
    (ROPE, (f(N, 2, 4), i(N)), (f(N, 2, 4),)),
    (ROPE, (f(N, 2, 9), i(N)), (f(N, 2, 9),)),
    (ops.KVStore(), STORE, ()),
    (ATTENTION, READ, (f(N, 4, 6),)),
    (ops.Attention(0.5, window=1), READ, (f(N, 4, 6),)),
    (ops.SelectRows(), (f(N, 64), i(OUT)), (f(OUT, 64),)),
    (ops.SelectRows(), (f(N, 4, 16), i(OUT)), (f(OUT, 4, 16),)),
    (ops.Copy(), (i(N),), (i(N),)),
]


def swap(specs: tuple[TensorSpec, ...], index: int, spec: TensorSpec) -> tuple[TensorSpec, ...]:
    return (*specs[:index], spec, *specs[index + 1 :])


REFUSED: list[tuple[Op, tuple[TensorSpec, ...], str]] = [
    (ops.Embedding(), (f(N), f(100, 64)), "token ids must be i32"),
    (ops.Embedding(), (i(N, 2), f(100, 64)), "token ids must be i32"),
    (ops.Embedding(), (i(N), f(100)), "table must have two dimensions"),
    (ops.Embedding(), (i(N), f(10, 10, 64)), "table must have two dimensions"),
    (ops.MatMul(), (t(F16, N, 64), f(10, 64)), "computes on f32"),
    (ops.MatMul(), (f(N, 4, 16), f(10, 16)), "wants matrices"),
    (ops.MatMul(), (f(N, 64), f(64)), "wants matrices"),
    (ops.MatMul(), (f(N, 64), f(64, 10)), "does not fit the weight"),
    (ops.MatMul(), (f(N, 64), f(10, 64), f(10)), "takes 2 inputs, not 3"),
    (ops.MatMul(has_bias=True), (f(N, 64), f(10, 64)), "takes 3 inputs, not 2"),
    (ops.MatMul(has_bias=True), (f(N, 64), f(10, 64), f(64)), "bias"),
    (ops.MatMul(has_bias=True), (f(N, 64), f(10, 64), f(1, 10)), "bias"),
    (ops.MatMulGroup((True, False)), (f(N, 64), f(10, 64), f(20, 64)), "takes 4 inputs, not 3"),
    (ops.MatMulGroup((True, False)), (f(N, 64), f(10, 64), f(20, 64), f(20)), "bias"),
    (ops.MatMulGroup((False, True)), (f(N, 64), f(10, 64), f(20, 64), f(10)), "bias"),
    (ops.MatMulGroup((False, False)), (f(N, 64), f(10, 64), f(20, 32)), "does not fit the weight"),
    (ops.GatedMatMul(SILU), (f(N, 64), f(10, 64), f(20, 64)), "differ"),
    (ops.GatedMatMul(SILU), (f(N, 64), f(10, 64), f(10, 32)), "does not fit the weight"),
    (ops.RMSNorm(0.1), (t(F16, N, 64), f(64)), "computes on f32"),
    (ops.RMSNorm(0.1), (f(N, 64), f(32)), "weight"),
    (ops.RMSNorm(0.1), (f(N, 4, 16), f(4, 16)), "weight"),
    (ops.AddRMSNorm(0.1), (f(N, 64), f(OUT, 64), f(64)), "differ"),
    (ops.AddRMSNorm(0.1), (f(N, 64), f(N, 64), f(32)), "weight"),
    (ops.AddRMSNorm(0.1), (i(N, 64), i(N, 64), f(64)), "computes on f32"),
    (ops.LayerNorm(0.1), (t(F16, N, 64), f(64)), "computes on f32"),
    (ops.LayerNorm(0.1), (f(N, 64), f(32)), "weight"),
    (ops.LayerNorm(0.1), (f(N, 64), f(64), f(64)), "takes 2 inputs"),
    (ops.LayerNorm(0.1, has_bias=True), (f(N, 64), f(64), f(32)), "weight"),
    (ops.Softcap(1.5), (i(N),), "computes on f32"),
    (ops.Softcap(0.0), (f(N, 64),), "limit 0"),
    (ops.Attention(0.5, softcap=0.0), READ, "softcap 0"),
    (ops.Add(), (f(N, 64), f(N, 32)), "differ"),
    (ops.Add(), (f(N, 64), f(64)), "differ"),
    (ops.Add(), (i(N), i(N)), "computes on f32"),
    (ops.Multiply(), (f(N, 64), t(F16, N, 64)), "differ"),
    (ops.Activation(SILU), (i(N),), "computes on f32"),
    (ops.GatedActivation(SILU), (f(N, 64), f(N, 4, 16)), "differ"),
    (ops.Reshape((N, 4, 15)), (f(N, 64),), "can't become"),
    (ops.Reshape((4, N, 16)), (f(N, 64),), "can't become"),
    (ops.Reshape((OUT, 64)), (f(N, 64),), "can't become"),
    (ops.Reshape((4, 16)), (f(N, 64),), "can't become"),
    (ops.Reshape(()), (f(N, 1),), "can't become"),
    (ROPE, (f(N, 8), i(N)), r"must be \[n, n_heads, head_dim\]"),
    (ROPE, (f(N, 2, 4), i(OUT)), "positions"),
    (ROPE, (f(N, 2, 4), f(N)), "positions"),
    (ROPE, (f(N, 2, 3), i(N)), "n_rot 4 > head_dim 3"),
    (ROPE, (t(F16, N, 2, 4), i(N)), "computes on f32"),
    (ops.KVStore(), swap(STORE, 0, t(F16, N, 2, 8)), "computes on f32"),
    (ops.KVStore(), swap(STORE, 1, i(N, 2, 6)), "computes on f32"),
    (ops.KVStore(), swap(STORE, 0, f(N, 16)), "does not fit"),
    (ops.KVStore(), swap(STORE, 0, f(OUT, 2, 8)), "cells"),
    (ops.KVStore(), swap(STORE, 1, f(OUT, 2, 6)), "cells"),
    (ops.KVStore(), swap(STORE, 2, f(N)), "cells"),
    (ops.KVStore(), swap(STORE, 2, i(OUT)), "cells"),
    (ops.KVStore(), swap(STORE, 3, f(CELLS, 2, 6)), "does not fit"),
    (ops.KVStore(), swap(STORE, 4, f(CELLS, 3, 6)), "does not fit"),
    (ops.KVStore(), swap(STORE, 4, f(128, 2, 6)), "no KV region"),
    (ops.KVStore(), STORE[:4], "takes 5 inputs"),
    (ATTENTION, swap(READ, 0, i(N, 4, 8)), "computes on f32"),
    (ATTENTION, swap(READ, 0, f(N, 32)), r"must be \[n, n_heads, head_dim\]"),
    (ATTENTION, swap(READ, 0, f(N, 3, 8)), "3 query heads can't share 2 KV heads"),
    (ATTENTION, swap(READ, 0, f(N, 1, 8)), "1 query heads can't share 2 KV heads"),
    (ATTENTION, swap(READ, 0, f(N, 4, 4)), "differ in width"),
    (ATTENTION, swap(READ, 1, f(CELLS, 16)), "no KV region"),
    (ATTENTION, swap(READ, 2, f(N, 2, 6)), "no KV region"),
    (ATTENTION, swap(READ, 2, f(CELLS, 4, 6)), "K has 2 heads and V has 4"),
    (ATTENTION, swap(READ, 3, i(N)), "pages"),
    (ATTENTION, swap(READ, 3, f(PAGES)), "pages"),
    (ATTENTION, swap(READ, 4, i(N)), "spans"),
    (ATTENTION, swap(READ, 4, i(OUT, 2)), "spans"),
    (ops.Attention(0.5, window=0), READ, "window 0"),
    (ops.Attention(0.5, window=-4), READ, "window -4"),
    (ops.SelectRows(), (i(N), i(OUT)), "computes on f32"),
    (ops.SelectRows(), (f(N, 64), f(OUT)), "rows must be i32"),
    (ops.SelectRows(), (f(N, 64), i(OUT, 2)), "rows must be i32"),
    (ops.Copy(), (f(N), f(N)), "takes 1 inputs, not 2"),
]


def test_ops_lists_every_op() -> None:
    defined = {cls for _, cls in inspect.getmembers(ops, inspect.isclass) if issubclass(cls, Op) and cls is not Op}
    assert set(OPS) == defined
    assert len(OPS) == len(set(OPS))
    assert {type(op) for op, _, _ in FITTING} == defined
    assert {type(op) for op, _, _ in REFUSED} == defined


@pytest.mark.parametrize(("op", "inputs", "outputs"), FITTING, ids=lambda x: x.kind if isinstance(x, Op) else "")
def test_output_specs(op: Op, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
    assert op.output_specs(inputs) == outputs


@pytest.mark.parametrize(("op", "inputs", "message"), REFUSED, ids=lambda x: x.kind if isinstance(x, Op) else "")
def test_refusals_name_the_op(op: Op, inputs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(GraphError, match=f"{op.kind}: .*{message}"):
        op.output_specs(inputs)


@pytest.mark.parametrize(("op", "inputs", "outputs"), FITTING, ids=lambda x: x.kind if isinstance(x, Op) else "")
def test_one_input_more_or_less_is_refused(
    op: Op, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    for wrong in (inputs[:-1], (*inputs, f(10))):
        with pytest.raises(GraphError, match=f"{op.kind}: takes {len(inputs)} inputs, not {len(wrong)}"):
            op.output_specs(wrong)


@pytest.mark.parametrize(("op", "inputs", "outputs"), FITTING, ids=lambda x: x.kind if isinstance(x, Op) else "")
def test_what_works_in_place_has_an_output_of_the_same_spec(
    op: Op, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    for position in op.in_place_inputs:
        assert inputs[position] == outputs[0]
    projections = (ops.MatMul, ops.MatMulGroup, ops.GatedMatMul, ops.Attention, ops.SelectRows, ops.Embedding)
    assert not (isinstance(op, projections) and op.in_place_inputs)


def test_the_base_op_has_no_shapes() -> None:
    with pytest.raises(NotImplementedError):
        Op().output_specs(())


def test_ops_are_frozen_values() -> None:
    assert all(is_dataclass(op) for op in OPS)
    assert ops.RMSNorm(0.1) == ops.RMSNorm(0.1) != ops.RMSNorm(0.2)
    with pytest.raises(AttributeError):
        ops.RMSNorm(0.1).eps = 0.2  # type: ignore[misc]


def test_a_group_knows_whose_bias_is_whose() -> None:
    group = ops.MatMulGroup((False, True, True))
    assert group.n_weights == 3
    assert group.split_inputs(6) == ((1, None), (2, 4), (3, 5))


def test_a_rope_shows_its_frequencies_in_short() -> None:
    assert repr(ops.Rope(RopeStyle.NON_INTERLEAVED, (1.0, 0.5, 0.25), 1.5)) == (
        "Rope(style=non_interleaved, frequencies=1..0.25 (3), magnitude=1.5)"
    )
    assert "none" in repr(ops.Rope(RopeStyle.INTERLEAVED, ()))
    assert ROPE.n_rot == 4
