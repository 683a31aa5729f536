"""Norms of rows."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.graph.ops.base import Op, Roles, Specs, roles, same_specs, take, want, want_f32
from minfer.graph.specs import TensorSpec


@dataclass(frozen=True)
class RMSNorm(Op):
    """(x f32[..., d], weight[d]) -> like x: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    row_wise = True
    in_place_inputs = (0,)

    eps: float

    @property
    def weight_roles(self) -> Roles:
        return roles(vector=[1])

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, weight = take(self, inputs, 2)
        want_f32(self, x)
        want(self, weight.shape == x.shape[-1:], f"weight {weight} does not fit {x}")
        return (x,)


@dataclass(frozen=True)
class AddRMSNorm(Op):
    """(a, b f32[..., d], weight[d]) -> (a + b, RMSNorm(a + b)): a residual addition with the norm that follows."""

    row_wise = True
    in_place_inputs = (0, 1)

    eps: float

    @property
    def weight_roles(self) -> Roles:
        return roles(vector=[2])

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        a, b, weight = take(self, inputs, 3)
        same_specs(self, (a, b))
        want(self, weight.shape == a.shape[-1:], f"weight {weight} does not fit {a}")
        return (a, a)


@dataclass(frozen=True)
class LayerNorm(Op):
    """(x f32[..., d], weight[d] (, bias[d])) -> like x: (x - mean) / sqrt(variance + eps) * weight + bias over the last
    dimension; the variance is the mean of (x - mean)^2."""

    row_wise = True
    in_place_inputs = (0,)

    eps: float
    has_bias: bool = False

    @property
    def weight_roles(self) -> Roles:
        return roles(vector=[1, 2] if self.has_bias else [1])

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, *vectors = take(self, inputs, 3 if self.has_bias else 2)
        want_f32(self, x)
        for vector in vectors:
            want(self, vector.shape == x.shape[-1:], f"weight {vector} does not fit {x}")
        return (x,)
