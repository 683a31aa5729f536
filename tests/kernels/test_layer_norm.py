"""LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias, on both backends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import check_close
from kernel_runner import f32, run_one, weight
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.graph.ops import LayerNorm
from tiny_runtime import same_bits

BACKENDS = [ReferenceBackend(), CpuBackend()]
UNIT = 2.0**-24 * (1 + 2.0**-20)


def exact(x: NDArray[np.float32], w: NDArray[np.float32], eps: float) -> NDArray[np.float64]:
    """Without the bias. Sums are exact but for one rounding."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    centred = np.array([row - math.fsum(row) / row.size for row in rows])
    scales = [1 / math.sqrt(math.fsum(row * row) / row.size + eps) for row in centred]
    return (centred * np.array(scales)[:, None] * w).reshape(x.shape)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_worked_value(backend: ReferenceBackend | CpuBackend) -> None:
    """Mean 2.5, variance 1.25."""
    y = run_one(LayerNorm(0.0), f32([[1, 2, 3, 4]]), weight(np.ones(4)), backend=backend)
    np.testing.assert_allclose(y[0], np.array([-1.5, -0.5, 0.5, 1.5]) / math.sqrt(1.25), rtol=2 * UNIT)
    y = run_one(LayerNorm(0.75, has_bias=True), f32([[3, 5]]), weight([2, 2]), weight([1, 2]), backend=backend)
    np.testing.assert_allclose(y[0], [1 - 2 / math.sqrt(1.75), 2 + 2 / math.sqrt(1.75)], rtol=4 * UNIT)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("shape", [(5, 96), (9, 3, 17), (2, 1), (1, 4097)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_against_exact_sums(shape: tuple[int, ...], offset: float, backend: ReferenceBackend | CpuBackend) -> None:
    """Rounded once before the weight, and once after it; a large mean costs nothing that float64 has not."""
    rng = np.random.default_rng(0)
    x = f32(rng.normal(offset, 1, shape))
    w, b = f32(rng.normal(1, 0.2, shape[-1])), f32(rng.normal(0, 1, shape[-1]))
    want = exact(x, w, 1e-5)
    y = run_one(LayerNorm(1e-5), x, weight(w), backend=backend)
    check_close(y, want, 2 * UNIT * np.abs(want) + 1e-30)
    y = run_one(LayerNorm(1e-5, has_bias=True), x, weight(w), weight(b), backend=backend)
    check_close(y, want + b, UNIT * (np.abs(want) + np.abs(want + b)) + 1e-30)
    if shape[-1] > 1:
        with pytest.raises(AssertionError):
            check_close(y, want, 2 * UNIT * np.abs(want))


def test_a_row_has_the_same_bits_alone() -> None:
    x = f32(np.random.default_rng(1).normal(0, 1, (9, 96)))
    w = weight(np.linspace(0.5, 1.5, 96))
    together = run_one(LayerNorm(1e-5), x, w, backend=CpuBackend())
    for row in range(9):
        assert same_bits(run_one(LayerNorm(1e-5), x[row : row + 1], w, backend=CpuBackend()), together[row : row + 1])


def test_nan_stays_in_its_row() -> None:
    x = f32([[math.nan, 1], [3, 5]])
    y = run_one(LayerNorm(0.0), x, weight([1, 1]), backend=CpuBackend())
    assert np.isnan(y[0]).all()
    assert y[1].tolist() == [-1, 1]
