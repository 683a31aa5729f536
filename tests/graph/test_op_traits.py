"""What ops say of themselves is so; and passes and the verifier go by it, not by names."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import minfer
from kernel_runner import Input, Operand, Packed, index, run_op, weight
from minfer.graph import Symbol, ops
from minfer.graph.ops import OPS, ActivationKind, Op, RopeStyle, WeightRole
from tiny_runtime import same_bits

SOURCES = Path(minfer.__file__).parent
NAMES = {op.__name__ for op in OPS}
MAKES = {"fuse.py": NAMES, "split.py": {"Copy"}}
"""What a pass puts into a graph, and what it puts together, is its content: it may name that."""


@pytest.mark.parametrize(
    "path", [*sorted((SOURCES / "passes").glob("*.py")), SOURCES / "graph" / "verify.py"], ids=lambda path: path.name
)
def test_passes_and_the_verifier_name_no_ops(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("minfer.graph")
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert "ops" not in imported
    assert (imported | used) & NAMES <= MAKES.get(path.name, set())


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


N = 5
X, Y, HEADS = random(N, 64), random(N, 64, seed=1), random(N, 2, 32, seed=2)
W, UP = weight(random(10, 64, seed=3)), weight(random(10, 64, seed=4))
SILU = ActivationKind.SILU
ROW_WISE: list[tuple[Op, tuple[Operand, ...]]] = [
    (ops.Embedding(), (index("tokens", [3, 1, 4, 1, 5]), W)),
    (ops.MatMul(has_bias=True), (X, W, weight(random(10, seed=5)))),
    (ops.MatMulGroup((False, False)), (X, W, UP)),
    (ops.GatedMatMul(SILU), (X, W, UP)),
    (ops.RMSNorm(0.1), (X, weight(random(64, seed=6)))),
    (ops.AddRMSNorm(0.1), (X, Y, weight(random(64, seed=6)))),
    (ops.LayerNorm(0.1, has_bias=True), (X, weight(random(64, seed=6)), weight(random(64, seed=7)))),
    (ops.Softcap(1.5), (X,)),
    (ops.Add(), (X, Y)),
    (ops.Multiply(), (X, Y)),
    (ops.Activation(SILU), (X,)),
    (ops.GatedActivation(SILU), (X, Y)),
    (ops.Reshape((Symbol.N_TOKENS, 4, 16)), (X,)),
    (ops.Rope(RopeStyle.INTERLEAVED, (1.0, 0.1)), (HEADS, index("positions", [7, 0, 2, 9, 4]))),
]


def test_these_are_all_that_work_row_by_row() -> None:
    assert {type(op) for op, _ in ROW_WISE} == {op for op in OPS if op.row_wise}


def _some(operand: NDArray[np.float32] | Input, rows: list[int]) -> NDArray[np.float32] | Input:
    return Input(operand.name, operand.data[rows]) if isinstance(operand, Input) else operand[rows]


@pytest.mark.parametrize(("op", "operands"), ROW_WISE, ids=lambda x: x.kind if isinstance(x, Op) else "")
def test_rows_do_not_depend_on_other_rows(op: Op, operands: tuple[Operand, ...]) -> None:
    rows = [3, 0]
    fewer = [each if isinstance(each, Packed) else _some(each, rows) for each in operands]
    for whole, part in zip(run_op(op, *operands).outputs, run_op(op, *fewer).outputs, strict=True):
        assert same_bits(whole[rows], part)


@pytest.mark.parametrize(("op", "operands"), ROW_WISE, ids=lambda x: x.kind if isinstance(x, Op) else "")
def test_an_op_can_be_had_for_other_numbers_of_rows(op: Op, operands: tuple[Operand, ...]) -> None:
    other = op.with_rows(Symbol.N_OUTPUTS)
    assert type(other) is type(op)
    assert other == op or Symbol.N_TOKENS in vars(op)["shape"]
    assert other.with_rows(Symbol.N_TOKENS) == op


def test_weights_have_roles() -> None:
    assert ops.MatMul().weight_roles == {1: WeightRole.MATRIX}
    assert ops.MatMul(has_bias=True).weight_roles == {1: WeightRole.MATRIX, 2: WeightRole.VECTOR}
    group = ops.MatMulGroup((False, True, False))
    assert group.weight_roles == {**dict.fromkeys((1, 2, 3), WeightRole.MATRIX), 4: WeightRole.VECTOR}
    assert ops.Add().weight_roles == {}


def test_an_op_that_says_nothing_promises_nothing() -> None:
    op = Op()
    assert not any((op.row_wise, op.is_view, op.selects_rows, op.is_transfer))
    assert op.in_place_inputs == op.states_read == op.states_written == ()
    assert not op.weight_roles
