"""Ops with a matrix among their weights: lookups and products."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.graph.ops.base import Op, Roles, Specs, is_index, roles, take, want, want_f32
from minfer.graph.ops.elementwise import ActivationKind
from minfer.graph.specs import Dim, TensorSpec

_MATRIX = roles(matrix=[1])
_MATRIX_AND_BIAS = roles(matrix=[1], vector=[2])
_TWO_MATRICES = roles(matrix=[1, 2])


@dataclass(frozen=True)
class Embedding(Op):
    """(tokens i32[n], table[n_vocab, n_embd]) -> f32[n, n_embd]: the rows of the table, dequantised."""

    row_wise = True

    @property
    def weight_roles(self) -> Roles:
        return _MATRIX

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        tokens, table = take(self, inputs, 2)
        want(self, is_index(tokens), f"token ids must be i32[n], not {tokens}")
        want(self, len(table.shape) == 2, f"the table must have two dimensions, not {table}")
        return (TensorSpec((*tokens.shape, table.shape[1])),)


@dataclass(frozen=True)
class MatMul(Op):
    """(x f32[n, k], weight[m, k] (, bias[m])) -> f32[n, m]: x times the weight's transpose, plus the bias."""

    row_wise = True

    has_bias: bool = False

    @property
    def weight_roles(self) -> Roles:
        return _MATRIX_AND_BIAS if self.has_bias else _MATRIX

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        operands = take(self, inputs, 3 if self.has_bias else 2)
        return (_projection(self, operands[0], operands[1], operands[2] if self.has_bias else None),)


@dataclass(frozen=True)
class MatMulGroup(Op):
    """Several `MatMul`s of one x in one pass: (x, weight..., bias...) -> one output a weight.

    `has_bias[i]` tells whether weight i has a bias; the biases follow all the weights, in the same order.
    """

    row_wise = True

    has_bias: tuple[bool, ...]

    @property
    def n_weights(self) -> int:
        return len(self.has_bias)

    def split_inputs(self, n_inputs: int) -> tuple[tuple[int, int | None], ...]:
        """For each weight, the indices of the weight and of its bias among the inputs."""
        biases = iter(range(1 + self.n_weights, n_inputs))
        return tuple((1 + i, next(biases) if has else None) for i, has in enumerate(self.has_bias))

    @property
    def weight_roles(self) -> Roles:
        first_bias = 1 + self.n_weights
        return roles(matrix=range(1, first_bias), vector=range(first_bias, first_bias + sum(self.has_bias)))

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        operands = take(self, inputs, 1 + self.n_weights + sum(self.has_bias))
        return tuple(
            _projection(self, operands[0], operands[w], None if b is None else operands[b])
            for w, b in self.split_inputs(len(operands))
        )


@dataclass(frozen=True)
class GatedMatMul(Op):
    """(x f32[n, k], gate[m, k], up[m, k]) -> f32[n, m]: activation(x gate^T) * (x up^T) in one pass."""

    row_wise = True

    activation: ActivationKind

    @property
    def weight_roles(self) -> Roles:
        return _TWO_MATRICES

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, gate, up = take(self, inputs, 3)
        output = _projection(self, x, gate, None)
        want(self, _projection(self, x, up, None) == output, f"gate {gate} and up {up} differ")
        return (output,)


def _projection(op: Op, x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None) -> TensorSpec:
    want_f32(op, x)
    want(op, len(x.shape) == 2 and len(weight.shape) == 2, f"wants matrices, not {x} and {weight}")
    want(op, x.shape[1] == weight.shape[1], f"{x} does not fit the weight {weight}")
    n_rows: Dim = weight.shape[0]
    want(op, bias is None or bias.shape == (n_rows,), f"bias {bias} does not fit the weight {weight}")
    return TensorSpec((x.shape[0], n_rows))
