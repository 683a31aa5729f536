"""SelectRows: the rows whose logits are wanted, in the order asked for."""

from __future__ import annotations

import numpy as np

from kernel_runner import f32, index, run_one
from minfer.graph.ops import SelectRows


def test_rows_in_the_order_asked_for() -> None:
    x = f32([[0, 1], [10, 11], [20, 21], [30, 31]])
    assert run_one(SelectRows(), x, index("output_rows", [3, 0, 3])).tolist() == [[30, 31], [0, 1], [30, 31]]


def test_no_rows_at_all() -> None:
    assert run_one(SelectRows(), f32(np.ones((2, 3))), index("output_rows", [])).shape == (0, 3)
