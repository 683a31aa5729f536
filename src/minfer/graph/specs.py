"""What a tensor in a graph looks like: a shape that may be symbolic, and an element type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from minfer.quants import GGMLType, row_bytes


class Symbol(StrEnum):
    """A dimension whose size is known only when a step runs, or when the graph is compiled."""

    N_TOKENS = "n_tokens"
    """Tokens of this step, over all sequences."""
    N_OUTPUTS = "n_outputs"
    """Rows of logits that this step asks for."""
    N_PAGES = "n_pages"
    """Page references of this step: the page lists of all its sequences, one after the other."""
    N_CELLS = "n_cells"
    """Cells of the KV cache; fixed when the graph is compiled."""


Dim = int | Symbol
Shape = tuple[Dim, ...]
Bounds = Mapping[Symbol, int]
"""The largest size that each symbol may take."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape (row-major; the last dimension is contiguous) and element type of a tensor."""

    shape: Shape
    ggml_type: GGMLType = GGMLType.F32

    def resolve(self, sizes: Bounds) -> tuple[int, ...]:
        """The shape with every symbol replaced by its size."""
        return tuple(sizes[dim] if isinstance(dim, Symbol) else dim for dim in self.shape)

    def n_bytes(self, sizes: Bounds) -> int:
        """Bytes of the tensor, packed, with every symbol replaced by its size."""
        *rows, width = self.resolve(sizes)
        return math.prod(rows) * row_bytes(self.ggml_type, width)

    def n_static_values(self) -> int:
        """The product of the dimensions that are plain numbers: values in one row of a symbolic tensor."""
        return math.prod(dim for dim in self.shape if not isinstance(dim, Symbol))

    def symbols(self) -> tuple[Symbol, ...]:
        """The symbolic dimensions, in order."""
        return tuple(dim for dim in self.shape if isinstance(dim, Symbol))

    def __str__(self) -> str:
        return f"{self.ggml_type.name.lower()}[{', '.join(str(dim) for dim in self.shape)}]"
