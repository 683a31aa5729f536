"""Embedding: rows of the table, dequantised."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_runner import f32, index, run_one, weight
from minfer.graph.ops import Embedding
from minfer.quants import GGMLType, dequantise
from tiny_runtime import same_bits


@pytest.mark.parametrize(
    "ggml_type", [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.Q6_K]
)
def test_rows_of_the_table(ggml_type: GGMLType) -> None:
    table = weight(np.random.default_rng(0).normal(size=(9, 256)), ggml_type)
    tokens = [8, 0, 3, 3, 7]
    y = run_one(Embedding(), index("tokens", tokens), table)
    assert same_bits(y, dequantise(ggml_type, table.data, 256)[tokens])


def test_worked_value() -> None:
    y = run_one(Embedding(), index("tokens", [2, 0]), weight(f32([[1, 2], [3, 4], [5, 6]])))
    assert y.tolist() == [[5, 6], [1, 2]]
