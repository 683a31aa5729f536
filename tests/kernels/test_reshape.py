"""Reshape: the same values in the same order."""

from __future__ import annotations

import numpy as np

from kernel_runner import f32, run_one
from minfer.graph import Symbol
from minfer.graph.ops import Reshape


def test_heads_are_neighbouring_columns() -> None:
    x = f32(np.arange(12).reshape(2, 6))
    y = run_one(Reshape((Symbol.N_TOKENS, 3, 2)), x)
    assert y.tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    assert run_one(Reshape((Symbol.N_TOKENS, 6)), y).tolist() == x.tolist()
