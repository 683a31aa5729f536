"""The grids of the IQ formats against the tables of the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.quants import iq_grids

GRIDS: list[tuple[Callable[[], NDArray[np.int8]], Any]] = [
    (iq_grids.iq1_s_grid, gguf.quants.IQ1_S),
    (iq_grids.iq2_xxs_grid, gguf.quants.IQ2_XXS),
    (iq_grids.iq2_xs_grid, gguf.quants.IQ2_XS),
    (iq_grids.iq2_s_grid, gguf.quants.IQ2_S),
    (iq_grids.iq3_xxs_grid, gguf.quants.IQ3_XXS),
    (iq_grids.iq3_s_grid, gguf.quants.IQ3_S),
]


@pytest.mark.parametrize(("grid", "table"), GRIDS, ids=lambda x: x.__name__)
def test_grid_matches_the_table(grid: Callable[[], NDArray[np.int8]], table: Any) -> None:
    table.init_grid()
    np.testing.assert_array_equal(grid(), table.grid.reshape(table.grid_shape))


@pytest.mark.parametrize(("grid", "table"), GRIDS, ids=lambda x: x.__name__)
def test_grids_cannot_be_written_to(grid: Callable[[], NDArray[np.int8]], table: Any) -> None:
    with pytest.raises(ValueError, match="read-only"):
        grid()[0, 0] = 0
