"""Ops that move values and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from minfer.graph.ops.base import Op, Specs, is_index, take, want, want_f32
from minfer.graph.specs import Dim, Shape, TensorSpec


@dataclass(frozen=True)
class Reshape(Op):
    """(x) -> the same values under another shape. The first dimension stays as it is."""

    row_wise = True
    is_view = True

    shape: Shape

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        (x,) = take(self, inputs, 1)
        output = TensorSpec(self.shape, x.ggml_type)
        same = output.n_static_values() == x.n_static_values() and self.shape[:1] == x.shape[:1]
        want(self, same and output.symbols() == x.symbols(), f"{x} can't become {output}")
        return (output,)

    def with_rows(self, n_rows: Dim) -> Self:
        return replace(self, shape=(n_rows, *self.shape[1:]))


@dataclass(frozen=True)
class SelectRows(Op):
    """(x f32[n, d], rows i32[n_outputs]) -> f32[n_outputs, d]."""

    selects_rows = True

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        x, rows = take(self, inputs, 2)
        want_f32(self, x)
        want(self, is_index(rows), f"rows must be i32[n], not {rows}")
        return (TensorSpec((rows.shape[0], *x.shape[1:]), x.ggml_type),)


@dataclass(frozen=True)
class Copy(Op):
    """(x) -> x in the memory of another backend."""

    is_transfer = True

    def output_specs(self, inputs: Specs) -> tuple[TensorSpec, ...]:
        return take(self, inputs, 1)
