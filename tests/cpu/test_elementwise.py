"""Add, Multiply, Activation and GatedActivation of the CPU backend against the reference, with derived bounds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import INTERPRETER, TARGETS, check_chunks_are_disjoint, check_close, normal, run_kernel, same_bits
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.elementwise import Elementwise, trace_elementwise
from minfer.graph.ops import ActivationKind

TOKENS = StepWord.N_TOKENS
UNIT = 2.0**-24
# Where exp(-x) is infinite in float32, the result is -0; exact ones are smaller than this.
NOTHING = 3e-37


def run(
    kind: Elementwise,
    a: NDArray[np.float32],
    b: NDArray[np.float32] | None = None,
    of: ActivationKind | None = None,
    target: str = TARGETS[0],
) -> NDArray[np.float32]:
    n, width = a.shape
    y = np.full((n + 1, width), 7.0, np.float32)
    kernel = trace_elementwise(kind, of, width, TOKENS)
    run_kernel(kernel, [a, b, y], range(-(-n // 4)), n_tokens=n, target=target)
    assert (y[n] == 7.0).all()
    return y[:n].copy()


def exact_activation(of: ActivationKind, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """x / (1 + exp(-z)) in float64, and the bound of a float32 computation of it.

    exp is off by 2 units, times the share of exp(-z) in the denominator; the sum and the quotient add 1 each. For
    GELU z itself is off by 7 units (two products for the cube, two with its constant, the sum, two with the other),
    which exp(-z) multiplies by |z|.
    """
    wide = x.astype(np.float64)
    z = wide if of is ActivationKind.SILU else 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    with np.errstate(over="ignore"):
        e = np.exp(-z)
        exact = wide / (1 + e)
        share = 1 / (1 + np.exp(z))
    of_z = 0.0 if of is ActivationKind.SILU else 7 * np.abs(z)
    return exact, UNIT * (1 + 2.0**-10) * (2 + (2 + of_z) * share) * np.abs(exact) + NOTHING


def spread(width: int) -> NDArray[np.float32]:
    """Numbers of every size that an activation tells apart, and some beyond."""
    x = normal(7, width)
    x[1] *= 1e-6
    x[2] *= 10
    x[3] *= 100
    x[4] = np.linspace(-20, 20, width)
    x[5] = np.linspace(-110, -80, width)
    x[6] *= 1e30
    return x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("width", [16, 35])
def test_add_and_multiply_round_once(width: int, target: str) -> None:
    a, b = normal(6, width), normal(6, width, seed=1)
    assert same_bits(run(Elementwise.ADD, a, b, target=target), a + b)
    assert same_bits(run(Elementwise.MULTIPLY, a, b, target=target), a * b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of", ActivationKind)
def test_activation_is_within_its_bound(of: ActivationKind, target: str) -> None:
    x = spread(35)
    exact, bound = exact_activation(of, x)
    check_close(run(Elementwise.ACTIVATION, x, of=of, target=target), exact, bound)
    other = next(each for each in ActivationKind if each is not of)
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(run(Elementwise.ACTIVATION, x, of=other), exact, bound)


@pytest.mark.parametrize("of", ActivationKind)
def test_activation_of_zeros_infinities_and_nan(of: ActivationKind) -> None:
    x = np.array([[0.0, -0.0, np.inf, np.nan, -1e4]], np.float32)
    y = run(Elementwise.ACTIVATION, x, of=of)[0]
    assert y[[0, 1, 4]].tolist() == [0, 0, 0]
    assert y[2] == np.inf
    assert np.isnan(y[3])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of", ActivationKind)
def test_gated_is_the_product_to_the_bit(of: ActivationKind, target: str) -> None:
    a, b = spread(35), normal(7, 35, seed=1)
    activated = run(Elementwise.ACTIVATION, a, of=of, target=target)
    assert same_bits(run(Elementwise.GATED, a, b, of, target), activated * b)


@pytest.mark.parametrize("kind", Elementwise)
def test_in_place_and_interpreted_it_gives_the_same_bits(kind: Elementwise) -> None:
    of = ActivationKind.SILU if kind in (Elementwise.ACTIVATION, Elementwise.GATED) else None
    operands = [normal(5, 19, seed=seed) for seed in range(kind.n_operands)]
    want = run(kind, *operands, of=of)
    assert same_bits(run(kind, *operands, of=of, target=INTERPRETER), want)
    for overwritten in range(kind.n_operands):
        given = [each.copy() for each in operands]
        kernel = trace_elementwise(kind, of, 19, TOKENS)
        run_kernel(kernel, [given[0], given[-1], given[overwritten]], range(2), n_tokens=5)
        assert same_bits(given[overwritten], want)


def test_chunks_write_their_own_rows() -> None:
    a, b = normal(9, 19), normal(9, 19, seed=1)
    kernel = trace_elementwise(Elementwise.ADD, None, 19, StepWord.N_OUTPUTS)
    check_chunks_are_disjoint(
        lambda chunks, outputs: run_kernel(kernel, [a, b, *outputs], chunks, n_outputs=9, n_tokens=99),
        [np.full((9, 19), 7.0, np.float32)],
        n_chunks=3,
    )
