"""Ops that compute each element by itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from minfer.graph.ops.base import Op, Specs, same_specs, take, want, want_f32
from minfer.graph.specs import TensorSpec


class ActivationKind(StrEnum):
    """Element-wise non-linearities."""

    SILU = "silu"
    """x / (1 + exp(-x))"""
    GELU = "gelu"
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): the tanh approximation that models are trained with"""


@dataclass(frozen=True)
class Add(Op):
    """(a, b) -> a + b, of equal shapes."""

    row_wise = True
    in_place_inputs = (0, 1)

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return same_specs(self, inputs)


@dataclass(frozen=True)
class Multiply(Op):
    """(a, b) -> a * b element by element, of equal shapes."""

    row_wise = True
    in_place_inputs = (0, 1)

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return same_specs(self, inputs)


@dataclass(frozen=True)
class Activation(Op):
    """(x) -> activation(x), element by element."""

    row_wise = True
    in_place_inputs = (0,)

    activation: ActivationKind

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        (x,) = take(self, inputs, 1)
        want_f32(self, x)
        return (x,)


@dataclass(frozen=True)
class GatedActivation(Op):
    """(gate, up) -> activation(gate) * up; with SiLU this is SwiGLU."""

    row_wise = True
    in_place_inputs = (0, 1)

    activation: ActivationKind

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return same_specs(self, inputs)


@dataclass(frozen=True)
class Softcap(Op):
    """(x) -> limit * tanh(x / limit), element by element: like x near 0, and never beyond the limit."""

    row_wise = True
    in_place_inputs = (0,)

    limit: float

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        (x,) = take(self, inputs, 1)
        want_f32(self, x)
        want(self, self.limit > 0, f"limit {self.limit}")
        return (x,)
