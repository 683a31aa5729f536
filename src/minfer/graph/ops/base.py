"""What every op is: its shapes, its traits, and the checks that the families share.

An op holds what is fixed when the graph is built; operands are values of the graph. Each op says what it takes and
gives in `output_specs`, which is the single place where shapes are checked. Its traits say how it behaves, so that
passes and the verifier ask an op and know none by name.

Shapes are row-major. `n` stands for the number of rows, usually the symbol `n_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, Self

from minfer.errors import GraphError
from minfer.graph.specs import Dim, Symbol, TensorSpec
from minfer.quants import GGMLType

Specs = Sequence[TensorSpec]


class WeightRole(StrEnum):
    """What an op does with a weight, and so how a backend may keep it."""

    MATRIX = "matrix"
    """[n_rows, n_columns]: rows that are multiplied with, or looked up"""
    VECTOR = "vector"
    """[n]: float values, as of norms and biases"""

    @property
    def n_dims(self) -> int:
        """How many dimensions such a weight has."""
        return 2 if self is WeightRole.MATRIX else 1


Roles = Mapping[int, WeightRole]
"""For the positions of inputs that are weights, the roles of these."""

NO_WEIGHTS: Final[Roles] = MappingProxyType({})


def roles(**of: Sequence[int]) -> Roles:
    """Roles by name: `roles(matrix=[1], vector=[2])`."""
    return MappingProxyType({position: WeightRole(role) for role, positions in of.items() for position in positions})


@dataclass(frozen=True)
class Op:
    """Base of all ops. The attributes are the traits of an op; the defaults are right for one that promises nothing."""

    row_wise: ClassVar[bool] = False
    """Row i of every output depends on row i of the inputs alone, and on weights: rows may be left out of all."""
    in_place_inputs: ClassVar[tuple[int, ...]] = ()
    """Inputs whose storage the first output may take over: every backend must compute right in that case."""
    is_view: ClassVar[bool] = False
    """The output is the first input's bytes under another shape: they share storage."""
    selects_rows: ClassVar[bool] = False
    """The output is some rows of the first input; the second says which."""
    is_transfer: ClassVar[bool] = False
    """Moves its input between backends: the plan runs it, and no backend does."""
    states_read: ClassVar[tuple[int, ...]] = ()
    """Inputs that are state, of which the op reads what an earlier node of the step wrote; with `states_written` too,
    what the last step left."""
    states_written: ClassVar[tuple[int, ...]] = ()
    """Inputs that are state, to which the op writes. Such a node runs although nobody reads its outputs."""

    @property
    def weight_roles(self) -> Roles:
        """Which inputs are weights, and what the op does with each. All others are no weights."""
        return NO_WEIGHTS

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        """The specs of the outputs.

        Raises:
            GraphError: when the inputs don't fit the op.
        """
        raise NotImplementedError

    def with_rows(self, n_rows: Dim) -> Self:
        """The op for inputs with that many rows: itself, unless it holds their number. For ops that are `row_wise`."""
        return self

    @property
    def kind(self) -> str:
        """The name of the op, as shown to people."""
        return type(self).__name__


def want(op: Op, condition: bool, message: str) -> None:
    """Raises GraphError with the op's name unless the condition holds."""
    if not condition:
        raise GraphError(f"{op.kind}: {message}")


def want_f32(op: Op, x: TensorSpec) -> None:
    """Activations are f32."""
    want(op, x.ggml_type is GGMLType.F32, f"computes on f32, not on {x}")


def is_index(spec: TensorSpec) -> bool:
    """Whether it is i32[n]."""
    return spec.ggml_type is GGMLType.I32 and len(spec.shape) == 1


def is_region(spec: TensorSpec) -> bool:
    """Whether it is a KV region [n_cells, n_kv_heads, width]."""
    return len(spec.shape) == 3 and spec.shape[0] is Symbol.N_CELLS


def take(op: Op, inputs: Specs, n_wanted: int) -> tuple[TensorSpec, ...]:
    """The inputs, which must be so many."""
    want(op, len(inputs) == n_wanted, f"takes {n_wanted} inputs, not {len(inputs)}")
    return tuple(inputs)


def same_specs(op: Op, inputs: Specs) -> tuple[TensorSpec, ...]:
    """The one output of an op on two f32 operands of equal shapes."""
    a, b = take(op, inputs, 2)
    want_f32(op, a)
    want(op, a == b, f"{a} and {b} differ")
    return (a,)
