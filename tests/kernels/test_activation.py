"""SiLU and GELU (tanh form), alone and as a gate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from kernel_runner import f32, run_one
from minfer.graph.ops import Activation, ActivationKind, GatedActivation, Multiply
from tiny_runtime import same_bits

SILU, GELU = Activation(ActivationKind.SILU), Activation(ActivationKind.GELU)
POINTS = np.concatenate([np.linspace(-20, 20, 801), np.geomspace(1e-30, 1e-2, 30), -np.geomspace(1e-30, 1e-2, 30)])


ONE_ROUNDING = 2.0**-24 * (1 + 2.0**-20)


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def gelu(x: float) -> float:
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + math.tanh(z))


def test_worked_values() -> None:
    y = run_one(SILU, f32([[1, -1, 0]]))
    assert_allclose(y, [[0.73105858, -0.26894142, 0]], rtol=1e-7)
    y = run_one(GELU, f32([[1, -1, 0]]))
    assert_allclose(y, [[0.84119199, -0.15880801, 0]], rtol=1e-7)


def test_silu_is_rounded_once() -> None:
    x = f32(POINTS[None])
    assert_allclose(run_one(SILU, x)[0], [silu(float(v)) for v in x[0]], rtol=ONE_ROUNDING)


def test_gelu_is_the_tanh_form() -> None:
    x = f32(POINTS[None])
    y = run_one(GELU, x)[0]
    # What is compared with loses digits for negative x: 1 + tanh is right to 2^-53.
    assert_allclose(y, [gelu(float(v)) for v in x[0]], rtol=ONE_ROUNDING, atol=20 * 2.0**-53)
    by_erf = [float(v) * 0.5 * (1 + math.erf(float(v) / math.sqrt(2))) for v in x[0]]
    by_sigmoid = [float(v) / (1 + math.exp(-1.702 * float(v))) for v in x[0]]
    for wrong in (by_erf, by_sigmoid, [silu(float(v)) for v in x[0]]):
        assert np.abs(y - wrong).max() > 1e-4


def test_gelu_keeps_its_digits_far_below_zero() -> None:
    """For large negative z, (1 + tanh(z)) / 2 is exp(2 z) to the last digit; at x = -8 it is 4e-22."""
    x = f32([[-7, -8, -9]])
    want = [float(v) * math.exp(2 * math.sqrt(2 / math.pi) * (float(v) + 0.044715 * float(v) ** 3)) for v in x[0]]
    assert_allclose(run_one(GELU, x)[0], want, rtol=ONE_ROUNDING)


@pytest.mark.parametrize("op", [SILU, GELU])
def test_extremes_are_right_and_warn_of_nothing(op: Activation) -> None:
    """The tests turn warnings into errors."""
    top = float(np.finfo(np.float32).max)
    x = [top, 1e30, 1000.0, 0.0, -1000.0, -1e30, -top]
    assert run_one(op, f32([x]))[0].tolist() == [f32(top), f32(1e30), 1000, 0, 0, 0, 0]
    assert np.isnan(run_one(op, f32([[math.nan]]))).all()
    assert run_one(op, f32([[math.inf]]))[0].tolist() == [math.inf]
    tiny = float(np.finfo(np.float32).tiny)
    assert run_one(op, f32([[tiny * 4]]))[0].tolist() == [tiny * 2]


@pytest.mark.parametrize("kind", ActivationKind)
def test_a_gate_is_its_parts(kind: ActivationKind) -> None:
    """The activated gate is rounded to float32 before the product."""
    rng = np.random.default_rng(0)
    gate, up = f32(rng.normal(0, 3, (6, 90))), f32(rng.normal(size=(6, 90)))
    y = run_one(GatedActivation(kind), gate, up)
    assert same_bits(y, run_one(Multiply(), run_one(Activation(kind), gate), up))
    assert not np.allclose(y, run_one(GatedActivation(kind), up, gate), atol=1e-2)
    of = silu if kind is ActivationKind.SILU else gelu
    rounded_once = f32(
        [[of(float(g)) * float(u) for g, u in zip(*rows, strict=True)] for rows in zip(gate, up, strict=True)]
    )
    assert not same_bits(y, rounded_once)
    assert_allclose(y, rounded_once, rtol=2.0**-22, atol=1e-14)
