"""Moving lanes about, constants, masks, reductions and exp."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minfer.simd import Kernel, KernelIR, f32, i1, i8, i32, i64, ptr, u8, vec
from simd_runs import Everywhere, Lanewise, assert_same_bits, random_bits

EXP = {lanes: Lanewise(f"exp_{lanes}", (f32,), f32, lambda k, x: k.exp(x), lanes) for lanes in (4, 16, 24)}
REDUCED_LANES = (1, 2, 16, 64)


def moves() -> KernelIR:
    k = Kernel("moves", x=ptr(i32), y=ptr(i32), out=ptr(i32))
    x, y, out = k.args
    a, b = k.load(x, 4), k.load(y, 4)
    rows = (
        k.shuffle(a, [3, 2, 1, 0]),
        k.shuffle(a, [0, 4, 1, 5], b),
        k.lanes(k.concat(a, b), 2, 6),
        k.insert(a, 2, 99),
        k.splat(k.extract(b, 1), 4),
        k.const(vec(i32, 4), [5, 6, 7, 8]) + a,
        k.const(vec(i32, 4), -1),
        k.shuffle(k.load(x, 3), [2, 0, 1, 1]),
        k.select(k.const(vec(i1, 4), [True, False, True, False]), a, b),
        k.select(k.extract(a, 0) > 0, a, 7),
        k.select(~(a > 11), a, b),
    )
    for index, row in enumerate(rows):
        k.store(out + 4 * index, row)
    return k.finish()


def masks(lanes: int) -> KernelIR:
    k = Kernel(f"masks_{lanes}", n=i64, out=ptr(i8))
    n, out = k.args
    k.store(out, k.select(k.first_lanes(n, lanes), k.const(vec(i8, lanes), 1), 0))
    return k.finish()


def reductions(lanes: int) -> KernelIR:
    k = Kernel(f"reductions_{lanes}", x=ptr(f32), out=ptr(f32))
    x, out = k.args
    values = k.load(x, lanes)
    for index, result in enumerate((k.reduce_sum(values), k.reduce_max(values), k.reduce_min(values))):
        k.store(out + index, result)
    return k.finish()


def integer_sum() -> KernelIR:
    k = Kernel("integer_sum", x=ptr(u8), out=ptr(u8))
    x, out = k.args
    k.store(out, k.reduce_sum(k.load(x, 8)))
    return k.finish()


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    return Everywhere(
        [
            moves(),
            integer_sum(),
            *(masks(lanes) for lanes in (1, 16, 40)),
            *(reductions(lanes) for lanes in REDUCED_LANES),
            *(each.kernel() for each in EXP.values()),
        ]
    )


def test_lanes_move_where_they_are_told_to(everywhere: Everywhere) -> None:
    x, y = np.array([10, 11, 12, 13], np.int32), np.array([20, 21, 22, 23], np.int32)
    *_, out = everywhere.run("moves", lambda: [x, y, np.zeros(44, np.int32)])
    assert out.reshape(11, 4).tolist() == [
        [13, 12, 11, 10],
        [10, 20, 11, 21],
        [12, 13, 20, 21],
        [10, 11, 99, 13],
        [21, 21, 21, 21],
        [15, 17, 19, 21],
        [-1, -1, -1, -1],
        [12, 10, 11, 11],
        [10, 21, 12, 23],
        [10, 11, 12, 13],
        [10, 11, 22, 23],
    ]


@pytest.mark.parametrize("lanes", [1, 16, 40])
@pytest.mark.parametrize("n", [-(2**63), -1, 0, 1, 7, 16, 39, 40, 2**32, 2**32 + 3, 2**63 - 1])
def test_first_lanes_for_any_count(everywhere: Everywhere, lanes: int, n: int) -> None:
    (out,) = everywhere.run(f"masks_{lanes}", lambda: [n, np.zeros(lanes, np.int8)])
    assert out.tolist() == [int(lane < n) for lane in range(lanes)]


@pytest.mark.parametrize("lanes", REDUCED_LANES)
def test_reductions_halve_and_combine(everywhere: Everywhere, lanes: int) -> None:
    x = np.random.default_rng(1).standard_normal(lanes).astype(np.float32) * np.float32(1e3)
    _, out = everywhere.run(f"reductions_{lanes}", lambda: [x, np.zeros(3, np.float32)])
    total = x
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    assert_same_bits(out, np.array([total[0], x.max(), x.min()], np.float32))


def test_the_order_of_a_sum_is_seen_in_its_bits(everywhere: Everywhere) -> None:
    # By halves 1e8 meets -1e8 first and the ones survive; from left to right they would be lost.
    x = np.zeros(16, np.float32)
    x[0], x[8], x[1], x[9] = 1e8, -1e8, 1.0, 2.0
    _, out = everywhere.run("reductions_16", lambda: [x, np.zeros(3, np.float32)])
    assert out[0] == 3.0


def test_sums_of_integers_wrap_around(everywhere: Everywhere) -> None:
    _, out = everywhere.run("integer_sum", lambda: [np.full(8, 200, np.uint8), np.zeros(1, np.uint8)])
    assert out[0] == 1600 % 256


def error_in_ulp(found: np.ndarray, x: np.ndarray) -> np.ndarray:
    exact = np.exp(x.astype(np.float64))
    _, exponent = np.frexp(exact)
    return np.abs(found.astype(np.float64) - exact) / np.ldexp(1.0, np.maximum(exponent - 24, -149))


def test_exp_is_within_eight_tenths_of_an_ulp_over_the_whole_range(everywhere: Everywhere) -> None:
    # From the numbers whose exponential rounds to 1 up to those that overflow, and down to those that vanish.
    positive = np.arange(0x33000000, 0x42B17218, 19997, np.uint32)
    negative = np.arange(0xB3000000, 0xC2CFF1B5, 19997, np.uint32)
    x = np.concatenate([positive, negative]).view(np.float32)
    found = everywhere.lanewise(EXP[16], x)
    worst = error_in_ulp(found, x)
    assert worst.max() < 0.8
    # The bound is not idle: a plain polynomial of this length is near it.
    assert worst.max() > 0.7


def test_exp_at_the_ends_of_its_range(everywhere: Everywhere) -> None:
    largest = np.uint32(0x42B17217).view(np.float32)  # exp of it is just below the largest f32
    last = np.uint32(0xC2CFF1B4).view(np.float32)  # exp of it is just above half the smallest f32
    over, under = np.nextafter(largest, np.float32(np.inf)), np.nextafter(last, np.float32(-np.inf))
    beyond = [np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-45, -1e-45, 1.0]
    x = np.array([0.0, -0.0, largest, over, last, under, *beyond], np.float32)
    found = everywhere.lanewise(EXP[16], x)
    assert found[:2].tolist() == [1.0, 1.0]
    assert np.isfinite(found[2])
    assert found[2] > 3.4e38
    assert found[3] == np.inf
    assert found[4] == np.float32(1e-45)
    assert found[5] == 0.0
    assert found[6] == np.inf
    assert found[7] == 0.0
    assert np.isnan(found[8])
    assert found[9:13].tolist() == [np.inf, 0.0, 1.0, 1.0]
    assert found[13] == np.float32(math.e)


@pytest.mark.parametrize("lanes", [4, 24])
def test_exp_does_not_depend_on_the_number_of_lanes(everywhere: Everywhere, lanes: int) -> None:
    x = random_bits(np.random.default_rng(2), f32, 480)
    assert_same_bits(everywhere.lanewise(EXP[lanes], x), everywhere.lanewise(EXP[16], x))
