"""What a step is given. Positions, cells and spans are data: no kernel has a counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ContextError, GraphError
from minfer.graph.specs import Bounds, Symbol, TensorSpec
from minfer.quants import GGMLType

PAGE_SIZE: Final = 64
"""Positions a page of the KV cache holds."""

INPUT_SPECS: Final[Mapping[str, TensorSpec]] = MappingProxyType(
    {
        "tokens": TensorSpec((Symbol.N_TOKENS,), GGMLType.I32),
        "positions": TensorSpec((Symbol.N_TOKENS,), GGMLType.I32),
        "cells": TensorSpec((Symbol.N_TOKENS,), GGMLType.I32),
        "spans": TensorSpec((Symbol.N_TOKENS, 2), GGMLType.I32),
        "pages": TensorSpec((Symbol.N_PAGES,), GGMLType.I32),
        "output_rows": TensorSpec((Symbol.N_OUTPUTS,), GGMLType.I32),
    }
)


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one step over `n_tokens` tokens, of one sequence or of several; all int32.

    tokens [n_tokens]: token ids. positions [n_tokens]: each token's position in its own sequence. cells [n_tokens]:
    the KV cell each token's key and value go to. spans [n_tokens, 2]: (page_start, n_visible), see `ops.Attention`.
    pages [n_pages]: the page lists of the step's sequences, one after the other. output_rows [n_outputs]: the tokens
    whose logits are wanted.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    cells: NDArray[np.int32]
    spans: NDArray[np.int32]
    pages: NDArray[np.int32]
    output_rows: NDArray[np.int32]

    @property
    def n_tokens(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def n_outputs(self) -> int:
        return int(self.output_rows.shape[0])

    def sizes(self) -> dict[Symbol, int]:
        """The sizes of the symbols that a step decides."""
        return {
            Symbol.N_TOKENS: self.n_tokens,
            Symbol.N_OUTPUTS: self.n_outputs,
            Symbol.N_PAGES: int(self.pages.shape[0]),
        }

    def arrays(self) -> dict[str, NDArray[np.int32]]:
        """The arrays by input name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self, *, n_vocab: int, n_ctx: int, bounds: Bounds) -> None:
        """Refuses anything that a kernel would read or write out of bounds with.

        Raises:
            ContextError: a position >= n_ctx, naming both numbers.
            GraphError: any other input that does not fit.
        """
        sizes = self.sizes()
        for name, array in self.arrays().items():
            want = INPUT_SPECS[name].resolve(sizes)
            if array.dtype != np.int32 or array.shape != want:
                raise GraphError(f"input {name} must be int32{list(want)}, not {array.dtype}{list(array.shape)}")
        for symbol, size in sizes.items():
            if size > bounds[symbol]:
                raise GraphError(f"{symbol} = {size}, and the plan was made for at most {bounds[symbol]}")
        if self.n_tokens == 0:
            raise GraphError("a step needs at least one token")
        top = int(self.positions.max())
        if top >= n_ctx:
            raise ContextError(f"position {top} is outside the context of {n_ctx}", n_positions=top + 1, n_ctx=n_ctx)
        _check_range("tokens", self.tokens, n_vocab)
        _check_range("positions", self.positions, n_ctx)
        _check_range("cells", self.cells, bounds[Symbol.N_CELLS])
        _check_range("pages", self.pages, bounds[Symbol.N_CELLS] // PAGE_SIZE)
        _check_range("output_rows", self.output_rows, self.n_tokens)
        starts, n_visible = self.spans[:, 0].astype(np.int64), self.spans[:, 1].astype(np.int64)
        last_pages = starts + (n_visible - 1) // PAGE_SIZE
        if (starts < 0).any() or (n_visible < 1).any() or (last_pages >= self.pages.shape[0]).any():
            raise GraphError("spans reach outside the page list")


def _check_range(name: str, array: NDArray[np.int32], end: int) -> None:
    if array.size and (int(array.min()) < 0 or int(array.max()) >= end):
        bad = array[(array < 0) | (array >= end)][0]
        raise GraphError(f"input {name} holds {bad}, outside [0, {end})")
