"""Softcap: limit * tanh(x / limit), on both backends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cpu_runner import INTERPRETER, TARGETS, check_close, run_kernel, same_bits
from kernel_runner import f32, run_one
from minfer.backends.cpu import CpuBackend
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.softcap import trace_softcap
from minfer.backends.reference import ReferenceBackend
from minfer.graph.ops import Softcap

UNIT = 2.0**-24
SPREAD = f32([np.linspace(-5, 5, 4099), np.linspace(-1e-3, 1e-3, 4099), np.linspace(-300, 300, 4099)])


@pytest.mark.parametrize(("backend", "units"), [(ReferenceBackend(), 1), (CpuBackend(), 8)], ids=["reference", "cpu"])
@pytest.mark.parametrize("limit", [1.0, 2.5, 30.0])
def test_against_float64(limit: float, backend: ReferenceBackend | CpuBackend, units: int) -> None:
    """The limit's inverse, the quotient and the product add 3 units to tanh's 5; tanh magnifies no relative error."""
    want = np.array([[limit * math.tanh(value / limit) for value in row] for row in SPREAD.astype(float)])
    y = run_one(Softcap(limit), SPREAD, backend=backend)
    check_close(y, want, units * UNIT * (1 + 2.0**-10) * np.abs(want))
    assert np.abs(y).max() <= np.float32(limit)


@pytest.mark.parametrize("backend", [ReferenceBackend(), CpuBackend()], ids=["reference", "cpu"])
def test_zeros_infinities_and_nan(backend: ReferenceBackend | CpuBackend) -> None:
    y = run_one(Softcap(30.0), f32([[0.0, np.inf, -np.inf, np.nan, 1e30]]), backend=backend)[0]
    assert y[[0, 1, 2, 4]].tolist() == [0, 30, -30, 30]
    assert np.isnan(y[3])


def test_every_target_gives_the_same_bits_in_place_too() -> None:
    x = SPREAD[:, ::100].copy()
    kernel = trace_softcap(2.5, x.shape[1], StepWord.N_TOKENS)
    want = run_one(Softcap(2.5), x, backend=CpuBackend())
    for target in (*TARGETS, INTERPRETER):
        y = x.copy()
        run_kernel(kernel, [y, y], range(1), n_tokens=3, target=target)
        assert same_bits(y, want)
