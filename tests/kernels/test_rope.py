"""RoPE: which dimensions make a pair, by how much a pair turns, and how exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from kernel_runner import f32, index, run_one
from minfer.graph.ops import Rope, RopeStyle
from tiny_runtime import same_bits

FREQUENCIES = (1.0, 0.01)
"""n_rot 4, base 10^4."""


def pairs(style: RopeStyle, n_rot: int) -> list[tuple[int, int]]:
    half = n_rot // 2
    return [(2 * i, 2 * i + 1) if style is RopeStyle.INTERLEAVED else (i, i + half) for i in range(half)]


def plain_rope(
    x: NDArray[np.float32], positions: Sequence[int], frequencies: Sequence[float], at: list[tuple[int, int]]
) -> NDArray[np.float64]:
    """Turns the pairs `at`, one by one, in float64."""
    y = x.astype(np.float64)
    for token, position in enumerate(positions):
        for (a, b), frequency in zip(at, frequencies, strict=True):
            cos, sin = math.cos(position * frequency), math.sin(position * frequency)
            first, second = x[token, :, a].astype(np.float64), x[token, :, b].astype(np.float64)
            y[token, :, a], y[token, :, b] = first * cos - second * sin, first * sin + second * cos
    return y


def assert_turned(y: NDArray[np.float32], want: NDArray[np.float64], x: NDArray[np.float32]) -> None:
    """All is done in float64 and rounded once: 2^-24 of the result, and a few 2^-53 of the pair before that."""
    assert_allclose(y, want, rtol=2.0**-24, atol=2e-15 * float(np.abs(x).max()) + 1e-45)


def test_worked_values() -> None:
    x = f32(np.eye(4)[:, None, :])
    positions = index("positions", [1, 1, 1, 1])
    c0, s0, c1, s1 = math.cos(1), math.sin(1), math.cos(0.01), math.sin(0.01)
    interleaved = [[c0, s0, 0, 0], [-s0, c0, 0, 0], [0, 0, c1, s1], [0, 0, -s1, c1]]
    non_interleaved = [[c0, 0, s0, 0], [0, c1, 0, s1], [-s0, 0, c0, 0], [0, -s1, 0, c1]]
    for style, want in ((RopeStyle.INTERLEAVED, interleaved), (RopeStyle.NON_INTERLEAVED, non_interleaved)):
        y = run_one(Rope(style, FREQUENCIES), x, positions)
        assert_allclose(y[:, 0], want, rtol=2.0**-24)


@pytest.mark.parametrize("style", RopeStyle)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 8), st.integers(0, 4), st.integers(0, 99))
def test_against_pairs_turned_one_by_one(
    style: RopeStyle, n_tokens: int, n_heads: int, n_pairs: int, n_beyond: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = f32(rng.normal(size=(n_tokens, n_heads, 2 * n_pairs + n_beyond)))
    positions = rng.integers(0, 5000, n_tokens).tolist()
    frequencies = tuple(10_000.0 ** (-i / n_pairs) for i in range(n_pairs))
    y = run_one(Rope(style, frequencies), x, index("positions", positions))
    assert_turned(y, plain_rope(x, positions, frequencies, pairs(style, 2 * n_pairs)), x)
    assert same_bits(y[..., 2 * n_pairs :], x[..., 2 * n_pairs :])


@pytest.mark.parametrize("style", RopeStyle)
def test_wrong_variants_are_far_off(style: RopeStyle) -> None:
    """The other style, pairs across the whole head where part of it turns, the other direction, one position off."""
    rng = np.random.default_rng(0)
    x, positions, frequencies = f32(rng.normal(size=(3, 2, 12))), [3, 700, 41], (1.0, 0.1, 0.01, 0.001)
    y = run_one(Rope(style, frequencies), x, index("positions", positions))
    right = pairs(style, 8)
    other = next(s for s in RopeStyle if s is not style)
    wrong = {
        "other style": plain_rope(x, positions, frequencies, pairs(other, 8)),
        "half of the head": plain_rope(x, positions, frequencies, [(i, i + 6) for i in range(4)]),
        "last dimensions": plain_rope(x, positions, frequencies, [(a + 4, b + 4) for a, b in right]),
        "other direction": plain_rope(x, positions, frequencies, [(b, a) for a, b in right]),
        "next position": plain_rope(x, [p + 1 for p in positions], frequencies, right),
        "reversed frequencies": plain_rope(x, positions, frequencies[::-1], right),
    }
    assert_turned(y, plain_rope(x, positions, frequencies, right), x)
    for name, values in wrong.items():
        assert np.abs(y - values).max() > 1e-2, name


PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def cos_sin(angle: Fraction) -> tuple[float, float]:
    """Cosine and sine of an exact angle: the series, on 60 digits, of what is left of it modulo 2 pi."""
    with localcontext(prec=60):
        turned = (Decimal(angle.numerator) / Decimal(angle.denominator)) % (2 * PI)
        terms, term = [Decimal(1)], Decimal(1)
        for k in range(1, 60):
            term = term * turned / k
            terms.append(term)
        cos = sum((-1) ** (k // 2) * t for k, t in enumerate(terms) if k % 2 == 0)
        sin = sum((-1) ** (k // 2) * t for k, t in enumerate(terms) if k % 2 == 1)
        return float(cos), float(sin)


def test_the_exact_cosine_is_one() -> None:
    for angle in (0.0, 0.5, 3.0, 6.25, 1234.5):
        assert_allclose(cos_sin(Fraction(angle)), (math.cos(angle), math.sin(angle)), atol=2e-16)


@pytest.mark.parametrize("style", RopeStyle)
@pytest.mark.parametrize("base", [10_000.0, 1_000_000.0])
def test_position_100_000_is_right(style: RopeStyle, base: float) -> None:
    """An angle a, rounded once to float64, is off by at most 2^-53 a, so a turned unit vector is too; then it is
    rounded to float32. Angles in float32 would be off by up to 2^-24 a: a hundred times what is allowed here."""
    position, n_rot = 100_000, 64
    frequencies = tuple(base ** (-2 * i / n_rot) for i in range(n_rot // 2))
    x = np.zeros((1, 1, n_rot), np.float32)
    at = pairs(style, n_rot)
    x[..., [a for a, _ in at]] = 1.0
    y = run_one(Rope(style, frequencies), x, index("positions", [position]))
    worst_in_float32 = 0.0
    for (a, b), frequency in zip(at, frequencies, strict=True):
        cos, sin = cos_sin(position * Fraction(frequency))
        angle = position * frequency
        allowed = 2.0**-53 * angle + 2.0**-52
        assert abs(float(y[0, 0, a]) - cos) <= 2.0**-24 * abs(cos) + allowed
        assert abs(float(y[0, 0, b]) - sin) <= 2.0**-24 * abs(sin) + allowed
        narrow = float(np.float32(position) * np.float32(frequency))
        worst_in_float32 = max(worst_in_float32, abs(math.cos(narrow) - cos))
    assert worst_in_float32 > 100 * (2.0**-24 + 2.0**-53 * position)


@pytest.mark.parametrize("style", RopeStyle)
def test_a_turn_keeps_lengths_and_the_magnitude_scales_them(style: RopeStyle) -> None:
    rng = np.random.default_rng(3)
    x = f32(rng.normal(size=(4, 2, 10)))
    positions = index("positions", [0, 1, 999, 100_000])
    frequencies = (1.0, 0.1, 0.01)
    lengths = [np.hypot(x[..., a], x[..., b], dtype=np.float64) for a, b in pairs(style, 6)]
    for magnitude in (1.0, 1.25):
        y = run_one(Rope(style, frequencies, magnitude), x, positions)
        for (a, b), length in zip(pairs(style, 6), lengths, strict=True):
            turned = np.hypot(y[..., a], y[..., b], dtype=np.float64)
            assert_allclose(turned, magnitude * length, rtol=2.0**-23)
        assert same_bits(y[..., 6:], x[..., 6:])


@pytest.mark.parametrize("style", RopeStyle)
def test_position_0_changes_nothing(style: RopeStyle) -> None:
    x = f32(np.random.default_rng(4).normal(size=(2, 3, 8)))
    assert np.array_equal(run_one(Rope(style, (1.0, 0.5, 0.1)), x, index("positions", [0, 0])), x)


@pytest.mark.parametrize("style", RopeStyle)
def test_scores_depend_on_the_distance_only(style: RopeStyle) -> None:
    rng = np.random.default_rng(5)
    vectors = f32(np.repeat(rng.normal(size=(2, 1, 16)), 3, axis=0))  # q, q, q, k, k, k
    positions = index("positions", [7, 1007, 7, 2, 1002, 3])
    rope = Rope(style, tuple(10_000.0 ** (-i / 8) for i in range(8)))
    y = run_one(rope, vectors, positions)[:, 0].astype(np.float64)
    near, far, other = (float(y[i] @ y[i + 3]) for i in range(3))
    assert abs(near - far) < 2.0**-23 * float(np.abs(y[0]) @ np.abs(y[3]))
    assert abs(near - other) > 1e-2


@pytest.mark.parametrize("style", RopeStyle)
def test_a_token_is_the_same_bits_alone_and_among_others(style: RopeStyle) -> None:
    rng = np.random.default_rng(6)
    x, positions = f32(rng.normal(size=(7, 2, 20))), rng.integers(0, 9000, 7)
    rope = Rope(style, tuple(10_000.0 ** (-i / 8) for i in range(8)), 1.1)
    together = run_one(rope, x, index("positions", positions))
    for i in range(7):
        alone = run_one(rope, x[i : i + 1], index("positions", positions[i : i + 1]))
        assert same_bits(alone[0], together[i])
