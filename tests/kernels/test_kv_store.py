"""KVStore: rows go to their cells, in the region's own type, and nowhere else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from kernel_runner import Packed, f32, index, region, run_op
from minfer.errors import ParameterError
from minfer.graph.ops import KVStore
from minfer.quants import GGMLType, quantise

CELLS = [70, 3, 127, 0, 64]


def store(
    k: NDArray[np.float32], v: NDArray[np.float32], cells: list[int], *regions: Packed
) -> list[NDArray[np.uint8]]:
    return run_op(KVStore(), k, v, index("cells", cells), *regions).regions


def filled(n_kv_heads: int, width: int, ggml_type: GGMLType, byte: int) -> Packed:
    blank = region(np.zeros((128, n_kv_heads, width)), ggml_type)
    return replace(blank, data=np.full_like(blank.data, byte))


@pytest.mark.parametrize("k_type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0])
@pytest.mark.parametrize("v_type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0])
@pytest.mark.parametrize("value_dim", [32, 64])
def test_rows_go_to_their_cells_and_nowhere_else(k_type: GGMLType, v_type: GGMLType, value_dim: int) -> None:
    rng = np.random.default_rng(0)
    k, v = f32(rng.normal(size=(5, 2, 64))), f32(rng.normal(size=(5, 2, value_dim)))
    before = filled(2, 64, k_type, 0xAB), filled(2, value_dim, v_type, 0xCD)
    after = store(k, v, CELLS, *before)
    for rows, old, new in zip((k, v), before, after, strict=True):
        want = old.data.copy()
        want[CELLS] = quantise(old.ggml_type, rows)
        assert_array_equal(new, want)


def test_a_cell_of_q8_0_is_34_bytes_for_32_values() -> None:
    blank = region(np.zeros((64, 3, 96)), GGMLType.Q8_0)
    assert blank.data.nbytes == 64 * 3 * 3 * 34


def test_float32_cells_keep_every_bit() -> None:
    k = f32([[[math.nan, math.inf, -0.0, 1e-45]]])
    stored, _ = store(k, k, [5], region(np.zeros((64, 1, 4))), region(np.zeros((64, 1, 4))))
    assert stored[5].tobytes() == k.tobytes()


@pytest.mark.parametrize(("ggml_type", "value"), [(GGMLType.Q8_0, math.nan), (GGMLType.F16, 1e6)])
def test_what_the_type_can_not_hold_is_refused(ggml_type: GGMLType, value: float) -> None:
    k = f32(np.full((1, 1, 32), value))
    with pytest.raises(ParameterError, match=str(int(value)) if value > 0 else "nan"):
        store(k, k, [0], region(np.zeros((64, 1, 32)), ggml_type), region(np.zeros((64, 1, 32)), ggml_type))
