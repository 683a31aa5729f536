"""The fusions: where they fire, where they must not, and that the fused graph gives the same bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings

from minfer.graph import Graph, GraphBuilder, Value, verify
from minfer.graph.ops import (
    OPS,
    Activation,
    ActivationKind,
    Add,
    AddRMSNorm,
    Copy,
    GatedActivation,
    GatedMatMul,
    MatMul,
    MatMulGroup,
    Multiply,
    Op,
    RMSNorm,
)
from minfer.passes import Pass, PassContext
from minfer.passes.assign import assign
from minfer.passes.fuse import fuse_add_norm, fuse_gated_activation, fuse_gated_matmul, fuse_matmul_group
from minfer.quants import GGMLType
from random_graphs import random_graphs
from small_graphs import (
    BOUNDS,
    CONTEXT,
    dense_graph,
    ids,
    node,
    partial_backend,
    plan_without_reuse,
    run_planned,
    value,
)
from tiny_runtime import same_bits

SILU = ActivationKind.SILU
FUSIONS: tuple[Pass, ...] = (fuse_gated_activation, fuse_gated_matmul, fuse_add_norm, fuse_matmul_group)
DENSE = assign(dense_graph(), CONTEXT)


def counts(graph: Graph) -> Counter[type[Op]]:
    return Counter(type(each.op) for each in graph.nodes)


def lacking(*missing: type[Op]) -> PassContext:
    """A backend under the name of the reference one, without some of its ops."""
    return PassContext((partial_backend("reference", *(set(OPS) - {Copy} - set(missing))),), BOUNDS)


def fused(graph: Graph, *passes: Pass, context: PassContext = CONTEXT) -> Graph:
    for run in passes:
        graph = run(graph, context)
        verify(graph)
    return graph


def split_between(graph: Graph, elsewhere: str) -> Graph:
    """One node on another backend; passes that fuse across the two would move it."""
    return replace(graph, nodes=tuple(replace(n, backend="other") if n.name == elsewhere else n for n in graph.nodes))


TWO = PassContext((*CONTEXT.backends, partial_backend("other", *(set(OPS) - {Copy}))), BOUNDS)


def with_output(graph: Graph, name: str) -> Graph:
    return replace(graph, outputs=MappingProxyType({**graph.outputs, "extra": value(graph, name).id}))


def built(declare: Callable[[GraphBuilder, Value], dict[str, Value]]) -> Graph:
    """A graph over x f32[n_tokens, 64], assigned to the reference backend."""
    b = GraphBuilder()
    x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
    return assign(b.build(declare(b, x)), CONTEXT)


def linear(b: GraphBuilder, x: Value, name: str, n_rows: int = 64) -> Value:
    return b.matmul(x, b.weight(f"{name}.weight", (n_rows, x.spec.n_static_values()), GGMLType.F32), None, name)


def norm(b: GraphBuilder, x: Value, name: str) -> Value:
    return b.rms_norm(x, b.weight(f"{name}.weight", (64,), GGMLType.F32), 1e-6, name)


def assert_same_bits(graph: Graph, other: Graph) -> None:
    assert graph.outputs == other.outputs
    before = run_planned(plan_without_reuse(graph), poison=False)
    after = run_planned(plan_without_reuse(other), poison=False)
    assert all(same_bits(before[name], after[name]) for name in before)


# In a whole decoder.


def test_all_together_on_a_decoder() -> None:
    graph = fused(DENSE, *FUSIONS)
    before, after = counts(DENSE), counts(graph)
    assert after[GatedMatMul] == 2
    assert after[GatedActivation] == after[Activation] == after[Multiply] == 0
    # Every addition is normalised but the last, whose rows are selected first.
    assert (after[AddRMSNorm], after[Add]) == (3, 1)
    assert after[RMSNorm] == before[RMSNorm] - 3
    assert after[MatMulGroup] == 2
    assert after[MatMul] == before[MatMul] - 2 * (3 + 2)
    assert_same_bits(DENSE, graph)


def test_values_that_live_on_keep_their_ids_names_and_layers() -> None:
    graph = fused(DENSE, *FUSIONS)
    for value_id, kept in graph.values.items():
        assert DENSE.value(value_id) == kept
    assert graph.outputs == DENSE.outputs
    group = node(graph, "1.q+1.k+1.v")
    assert group.layer == 1
    assert group.op == MatMulGroup((True, False, False))
    assert group.inputs == ids(graph, "1.attn_norm", "1.q.weight", "1.k.weight", "1.v.weight", "1.q.bias")
    assert group.outputs == ids(graph, "1.q", "1.k", "1.v")
    gated = node(graph, "0.gate+0.up")
    assert gated.inputs == ids(graph, "0.ffn_norm", "0.gate.weight", "0.up.weight")
    assert gated.outputs == ids(graph, "0.gated")
    summed = node(graph, "0.hidden+1.attn_norm")
    assert summed.op == AddRMSNorm(1e-6)
    assert summed.inputs == ids(graph, "0.middle", "0.down", "1.attn_norm.weight")
    assert summed.outputs == ids(graph, "0.hidden", "1.attn_norm")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs())
def test_any_graph_gives_the_same_bits(graph: Graph) -> None:
    graph = assign(graph, CONTEXT)
    assert_same_bits(graph, fused(graph, *FUSIONS))


@pytest.mark.parametrize(
    ("missing", "passes"),
    [
        (GatedActivation, (fuse_gated_activation,)),
        (GatedMatMul, (fuse_gated_activation, fuse_gated_matmul)),
        (AddRMSNorm, (fuse_add_norm,)),
        (MatMulGroup, (fuse_matmul_group,)),
    ],
)
def test_an_op_that_the_backend_lacks_is_not_made(missing: type[Op], passes: tuple[Pass, ...]) -> None:
    assert counts(fused(DENSE, *passes))[missing] > 0
    assert counts(fused(DENSE, *passes, context=lacking(missing)))[missing] == 0


def test_projections_that_can_not_be_gated_are_grouped() -> None:
    graph = fused(DENSE, *FUSIONS, context=lacking(GatedMatMul))
    assert node(graph, "0.gate+0.up").op == MatMulGroup((False, False))
    assert counts(graph)[GatedActivation] == 2
    assert_same_bits(DENSE, graph)


@pytest.mark.parametrize(
    ("elsewhere", "passes", "op", "n"),
    [
        ("0.activated", (fuse_gated_activation,), GatedActivation, 1),
        ("0.gated", (fuse_gated_activation,), GatedActivation, 1),
        ("0.up", (fuse_gated_activation, fuse_gated_matmul), GatedMatMul, 1),
        ("0.gate", (fuse_gated_activation, fuse_gated_matmul), GatedMatMul, 1),
        ("0.ffn_norm", (fuse_add_norm,), AddRMSNorm, 2),
        ("0.middle", (fuse_add_norm,), AddRMSNorm, 2),
        ("0.k", (fuse_matmul_group,), MatMulGroup, 3),
        ("0.up", (fuse_matmul_group,), MatMulGroup, 3),
    ],
)
def test_nodes_of_different_backends_are_not_fused(
    elsewhere: str, passes: tuple[Pass, ...], op: type[Op], n: int
) -> None:
    graph = split_between(DENSE, elsewhere)
    result = fused(graph, *passes, context=TWO)
    assert counts(fused(DENSE, *passes))[op] == n + 1
    assert counts(result)[op] == n
    assert node(result, elsewhere).backend == "other"


# The gated activation.


@pytest.mark.parametrize("swapped", [False, True])
def test_a_gate_on_either_side(swapped: bool) -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        gate, up = b.activation(linear(b, x, "gate"), SILU, "activated"), linear(b, x, "up")
        return {"logits": b.multiply(*((up, gate) if swapped else (gate, up)), "gated")}

    graph = built(declare)
    result = fused(graph, fuse_gated_activation)
    assert node(result, "gated").op == GatedActivation(SILU)
    assert node(result, "gated").inputs == ids(result, "gate", "up")
    assert_same_bits(graph, result)
    assert_same_bits(graph, fused(result, fuse_gated_matmul))


def test_two_activated_factors_keep_one_activation() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        one, two = b.activation(x, SILU, "one"), b.activation(linear(b, x, "w"), ActivationKind.GELU, "two")
        return {"logits": b.multiply(one, two, "gated")}

    graph = built(declare)
    result = fused(graph, fuse_gated_activation)
    assert counts(result)[GatedActivation] == counts(result)[Activation] == 1
    assert_same_bits(graph, result)


def test_a_squared_activation_is_no_gate() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        activated = b.activation(x, SILU, "activated")
        return {"logits": b.multiply(activated, activated, "gated")}

    assert counts(fused(built(declare), fuse_gated_activation))[GatedActivation] == 0


def test_a_gate_that_others_read_or_that_is_an_output_stays() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        activated = b.activation(x, SILU, "activated")
        gated = b.multiply(activated, linear(b, x, "up"), "gated")
        return {"logits": b.add(gated, activated, "sum")}

    assert counts(fused(built(declare), fuse_gated_activation))[GatedActivation] == 0
    graph = with_output(DENSE, "0.activated")
    assert counts(fused(graph, fuse_gated_activation))[GatedActivation] == 1
    assert_same_bits(graph, fused(graph, *FUSIONS))


# The gated product.


@pytest.mark.parametrize("name", ["0.gate", "0.up"])
def test_a_projection_that_is_an_output_stays(name: str) -> None:
    graph = with_output(DENSE, name)
    result = fused(graph, fuse_gated_activation, fuse_gated_matmul)
    assert counts(result)[GatedMatMul] == 1
    assert node(result, "0.gated").op == GatedActivation(SILU)
    assert_same_bits(graph, result)


def test_a_projection_that_others_read_stays() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        up = linear(b, x, "up")
        gated = b.multiply(b.activation(linear(b, x, "gate"), SILU, "activated"), up, "gated")
        return {"logits": b.add(gated, up, "sum")}

    assert counts(fused(built(declare), fuse_gated_activation, fuse_gated_matmul))[GatedMatMul] == 0


def test_projections_of_different_values_stay() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        other = b.add(x, x, "other")
        activated = b.activation(linear(b, x, "gate"), SILU, "activated")
        return {"logits": b.multiply(activated, linear(b, other, "up"), "gated")}

    assert counts(fused(built(declare), fuse_gated_activation, fuse_gated_matmul))[GatedMatMul] == 0


@pytest.mark.parametrize("biased", ["gate", "up"])
def test_projections_with_a_bias_stay(biased: str) -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        parts = {}
        for name in ("gate", "up"):
            bias = b.weight(f"{name}.bias", (64,), GGMLType.F32) if name == biased else None
            parts[name] = b.matmul(x, b.weight(f"{name}.weight", (64, 64), GGMLType.F32), bias, name)
        return {"logits": b.multiply(b.activation(parts["gate"], SILU, "activated"), parts["up"], "gated")}

    assert counts(fused(built(declare), fuse_gated_activation, fuse_gated_matmul))[GatedMatMul] == 0


# The sum that is normalised.


def test_a_sum_may_have_other_readers_and_be_an_output() -> None:
    graph = with_output(DENSE, "0.middle")
    result = fused(graph, fuse_add_norm)
    assert node(result, "0.middle+0.ffn_norm").op == AddRMSNorm(1e-6)
    assert_same_bits(graph, result)


def test_of_two_norms_of_a_sum_the_first_is_fused() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        total = b.add(x, linear(b, x, "w"), "sum")
        first = norm(b, total, "first")
        return {"logits": b.add(first, norm(b, total, "second"), "end")}

    graph = built(declare)
    result = fused(graph, fuse_add_norm)
    assert (counts(result)[AddRMSNorm], counts(result)[RMSNorm]) == (1, 1)
    assert node(result, "sum+first").outputs == ids(result, "sum", "first")
    assert_same_bits(graph, result)


def test_a_norm_after_something_else_stays() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        total = b.add(x, x, "sum")
        return {"logits": norm(b, b.multiply(total, x, "product"), "norm")}

    assert counts(fused(built(declare), fuse_add_norm))[AddRMSNorm] == 0


# Products of one value.


def test_products_of_different_values_are_not_grouped() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        return {"logits": linear(b, linear(b, x, "first"), "second")}

    assert counts(fused(built(declare), fuse_matmul_group))[MatMulGroup] == 0


def test_products_with_one_weight_are_grouped_by_their_value() -> None:
    def declare(b: GraphBuilder, x: Value) -> dict[str, Value]:
        shared = b.weight("shared", (64, 64), GGMLType.F32)
        y = b.add(x, x, "y")
        products = [b.matmul(x, shared, None, "a"), b.matmul(y, shared, None, "b"), linear(b, y, "c")]
        total = b.add(products[0], products[1], "sum")
        return {"logits": b.add(total, products[2], "end")}

    graph = built(declare)
    result = fused(graph, fuse_matmul_group)
    assert node(result, "b+c").inputs == ids(result, "y", "shared", "c.weight")
    assert node(result, "a").op == MatMul()
    assert_same_bits(graph, result)


def test_products_may_be_outputs() -> None:
    graph = with_output(DENSE, "0.k")
    result = fused(graph, fuse_matmul_group)
    assert node(result, "0.q+0.k+0.v").op == MatMulGroup((True, False, False))
    assert_same_bits(graph, result)


def test_fusing_twice_changes_nothing_more() -> None:
    once = fused(DENSE, *FUSIONS)
    assert fused(once, *FUSIONS).nodes == once.nodes
