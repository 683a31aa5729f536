"""Add and Multiply: float32, one rounding an element."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernel_runner import f32, run_one
from minfer.graph.ops import Add, Multiply, Op
from tiny_runtime import same_bits


def test_add() -> None:
    y = run_one(Add(), f32([[1, 2.5, -3], [1, 2.0**24, 3e38]]), f32([[10, 20, 30], [2.0**-24, 1, 3e38]]))
    assert y.tolist() == [[11, 22.5, 27], [1, 2.0**24, math.inf]]


def test_multiply() -> None:
    y = run_one(
        Multiply(), f32([[1, 2.5, -3], [1 + 2.0**-12, 1e-30, 3e38]]), f32([[10, 20, 30], [1 + 2.0**-12, 1e-30, 10]])
    )
    assert y.tolist() == [[10, 50, -90], [1 + 2.0**-11, 0, math.inf]]


@pytest.mark.parametrize("op", [Add(), Multiply()])
def test_rounded_once_and_the_same_bits_in_any_batch(op: Op) -> None:
    rng = np.random.default_rng(0)
    a, b = f32(rng.normal(size=(9, 3, 37))), f32(rng.normal(size=(9, 3, 37)))
    wide = a.astype(float) + b.astype(float) if isinstance(op, Add) else a.astype(float) * b.astype(float)
    y = run_one(op, a, b)
    assert same_bits(y, f32(wide))
    assert same_bits(run_one(op, a[4:6], b[4:6]), y[4:6])
