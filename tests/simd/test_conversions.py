"""Conversions on every target and in the interpreter, bit for bit, including what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from minfer.simd import (
    Kernel,
    Scalar,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    ptr,
    u8,
    u16,
    u32,
    u64,
    vec,
)
from simd_runs import DTYPES, Array, Everywhere, Lanewise, assert_same_bits, random_bits, singles

INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
NUMERIC = [
    *((a, b) for a in INTEGERS for b in (i8, u16, i32, i64) if a != b),
    *((a, b) for a in INTEGERS for b in (f32, f64)),
    (f32, f64),
    (f64, f32),
    (f16, f32),
    (f32, f16),
    (bf16, f32),
    (f32, bf16),
]
SATURATING = [(i32, i8), (i32, u8), (i32, i16), (i16, i8), (i16, u8), (u32, i8), (u16, u8), (i64, i32), (u64, i32)]


def numeric(a: Scalar, b: Scalar, lanes: int = 16) -> Lanewise:
    return Lanewise(f"{a}_to_{b}_{lanes}", (a,), b, lambda k, x: x.to(b), lanes)


def saturating(a: Scalar, b: Scalar) -> Lanewise:
    return Lanewise(f"{a}_saturated_{b}", (a,), b, lambda k, x: x.saturate_to(b))


def rounding(lanes: int) -> Lanewise:
    return Lanewise(f"round_to_{lanes}", (f32,), i32, lambda k, x: x.round_to(i32), lanes)


def truncating(lanes: int) -> Lanewise:
    return Lanewise(f"trunc_to_{lanes}", (f32,), i32, lambda k, x: x.trunc_to(i32), lanes)


BITCAST = Lanewise("bitcast", (f32,), u32, lambda k, x: x.bitcast(vec(u8, 64)).bitcast(vec(u32, 16)))
ODD_LANES = (1, 3, 8, 20, 48)


def _scalar_kernel() -> Kernel:
    k = Kernel("scalars", x=f32, n=i32, floats=ptr(f32), integers=ptr(i32), halves=ptr(f16))
    x, n, floats, integers, halves = k.args
    k.store(floats, n.to(f32))
    k.store(integers, x.round_to(i32))
    k.store(integers + 1, x.trunc_to(i32))
    k.store(integers + 2, n.saturate_to(i8).to(i32))
    k.store(halves, x.to(f16))
    k.store(floats + 1, k.load(halves).to(f32))
    return k


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    operations = [
        *(numeric(*pair) for pair in NUMERIC),
        *(saturating(*pair) for pair in SATURATING),
        *(make(lanes) for make in (rounding, truncating) for lanes in (*ODD_LANES, 16)),
        *(numeric(f16, f32, lanes) for lanes in ODD_LANES),
        *(numeric(f32, f16, lanes) for lanes in ODD_LANES),
        BITCAST,
    ]
    return Everywhere([*(each.kernel() for each in operations), _scalar_kernel().finish()])


def bf16_to_f32(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """The nearest bf16, found by comparing the two neighbours in f64; ties go to the even one."""
    low = (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = values.astype(np.float64)
    high = low + np.uint16(1)
    distances = []
    for each in (low, high):
        as_float = bf16_to_f32(each).astype(np.float64)
        # What would be the next number, were there no infinity, decides between the largest number and infinity.
        as_float = np.where(np.isinf(as_float), np.copysign(2.0**128, as_float), as_float)
        distances.append(np.abs(as_float - exact))
    takes_high = (distances[1] < distances[0]) | ((distances[1] == distances[0]) & (low % 2 == 1))
    nearest = np.where(takes_high, high, low)
    nearest = np.where(np.isinf(values), low, nearest)
    return np.where(np.isnan(values), np.uint16(0x7FC0), nearest).astype(np.uint16)


@pytest.mark.parametrize(("a", "b"), NUMERIC, ids=str)
def test_numeric_conversions(everywhere: Everywhere, a: Scalar, b: Scalar) -> None:
    rng = np.random.default_rng(1)
    values = np.arange(2**16, dtype=np.uint16).view(DTYPES[a.name]) if a.bits == 16 else singles(a, rng)
    found = everywhere.lanewise(numeric(a, b), values)
    with np.errstate(all="ignore"):
        if a == bf16:
            assert_same_bits(found, bf16_to_f32(values))
        elif b == bf16:
            expected = f32_to_bf16(values)
            assert_same_bits(bf16_to_f32(found), bf16_to_f32(expected))
        else:
            assert_same_bits(found, values.astype(DTYPES[b.name]))


def test_f32_to_f16_at_every_border_between_two_halves(everywhere: Everywhere) -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    below, above = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))
    overflow = np.array([65504, 65519.996, 65520, 65536, 1e9], np.float32)
    values = np.concatenate([halves, middles, below, above, overflow])
    values = np.concatenate([values, -values])
    with np.errstate(over="ignore"):
        assert_same_bits(everywhere.lanewise(numeric(f32, f16), values), values.astype(np.float16))


@pytest.mark.parametrize("lanes", ODD_LANES)
def test_half_conversions_of_any_width(everywhere: Everywhere, lanes: int) -> None:
    values = random_bits(np.random.default_rng(2), f16, 20 * lanes)
    wide = everywhere.lanewise(numeric(f16, f32, lanes), values)
    assert_same_bits(wide, values.astype(np.float32))
    assert_same_bits(everywhere.lanewise(numeric(f32, f16, lanes), wide), values)


@pytest.mark.parametrize(("a", "b"), SATURATING, ids=str)
def test_saturation_gives_the_nearest_that_fits(everywhere: Everywhere, a: Scalar, b: Scalar) -> None:
    values = singles(a, np.random.default_rng(3))
    limits = np.iinfo(DTYPES[b.name])
    expected = [min(max(int(x), limits.min), limits.max) for x in values]
    assert everywhere.lanewise(saturating(a, b), values).tolist() == expected


@pytest.mark.parametrize("lanes", [*ODD_LANES, 16])
def test_floats_to_integers(everywhere: Everywhere, lanes: int) -> None:
    rng = np.random.default_rng(4)
    near = rng.uniform(-300, 300, 500).astype(np.float32)
    halves = np.arange(-20, 20, dtype=np.float32) + np.float32(0.5)
    values = np.concatenate([singles(f32, rng, 300), near, halves])
    with np.errstate(invalid="ignore"):
        fits = np.abs(values) < 2.0**31
    safe = np.where(fits, values, 0)
    for operation, whole in ((rounding(lanes), np.rint(safe)), (truncating(lanes), np.trunc(safe))):
        expected = np.where(fits, whole.astype(np.int64), -(2**31))
        assert (everywhere.lanewise(operation, values) == expected).all()


def test_bitcasts_keep_the_bits(everywhere: Everywhere) -> None:
    values = random_bits(np.random.default_rng(5), f32, 64)
    assert (everywhere.lanewise(BITCAST, values) == values.view(np.uint32)).all()


@pytest.mark.parametrize(("x", "n"), [(2.5, 300), (-3.5, -300), (1e20, 5), (70000.0, -(2**31)), (1e-7, 2**31 - 1)])
def test_scalars_convert_like_lanes(everywhere: Everywhere, x: float, n: int) -> None:
    with np.errstate(over="ignore"):
        half = np.float32(x).astype(np.float16)
    floats, integers, _ = everywhere.run(
        "scalars", lambda: [x, n, np.zeros(2, np.float32), np.zeros(3, np.int32), np.zeros(1, np.float16)]
    )
    assert_same_bits(floats, np.array([n, half], np.float32))
    fits = abs(x) < 2**31
    assert integers.tolist() == [
        round(x) if fits else -(2**31),
        int(x) if fits else -(2**31),
        min(max(n, -128), 127),
    ]
