"""Every operator and elementwise function, on every target and in the interpreter, against NumPy: bit for bit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from minfer.simd import Kernel, Scalar, Value, f32, f64, i8, i16, i32, i64, ptr, u8, u16, u32, u64, vec
from simd_runs import Array, Everywhere, Lanewise, assert_same_bits, pairs, random_bits, singles

INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
SIGNED = (i8, i16, i32, i64)
FLOATS = (f32, f64)

Trace = Callable[..., Value]
Reference = Callable[..., Array]

BINARY: dict[str, tuple[tuple[Scalar, ...], Trace, Reference]] = {
    "add": ((*INTEGERS, *FLOATS), lambda k, a, b: a + b, operator.add),
    "subtract": ((*INTEGERS, *FLOATS), lambda k, a, b: a - b, operator.sub),
    "multiply": ((*INTEGERS, *FLOATS), lambda k, a, b: a * b, operator.mul),
    "divide": (FLOATS, lambda k, a, b: a / b, operator.truediv),
    "and": (INTEGERS, lambda k, a, b: a & b, operator.and_),
    "or": (INTEGERS, lambda k, a, b: a | b, operator.or_),
    "xor": (INTEGERS, lambda k, a, b: a ^ b, operator.xor),
    "minimum": ((*INTEGERS, *FLOATS), lambda k, a, b: k.minimum(a, b), lambda a, b: np.where(a < b, a, b)),
    "maximum": ((*INTEGERS, *FLOATS), lambda k, a, b: k.maximum(a, b), lambda a, b: np.where(a > b, a, b)),
}
COMPARISONS: dict[str, tuple[Trace, Reference]] = {
    "less": (lambda a, b: a < b, operator.lt),
    "less_equal": (lambda a, b: a <= b, operator.le),
    "greater": (lambda a, b: a > b, operator.gt),
    "greater_equal": (lambda a, b: a >= b, operator.ge),
    "equal": (lambda a, b: a.eq(b), np.equal),
    "not_equal": (lambda a, b: a.ne(b), np.not_equal),
}
UNARY: dict[str, tuple[tuple[Scalar, ...], Trace, Reference]] = {
    "negate": ((*SIGNED, *FLOATS), lambda k, a: -a, np.negative),
    "invert": (INTEGERS, lambda k, a: ~a, np.invert),
    "abs": ((*SIGNED, *FLOATS), lambda k, a: k.abs(a), np.abs),
    "sqrt": (FLOATS, lambda k, a: k.sqrt(a), np.sqrt),
    "floor": (FLOATS, lambda k, a: k.floor(a), np.floor),
    "round_even": (FLOATS, lambda k, a: k.round_even(a), np.rint),
}
BINARY_CASES = [(name, of) for name, (types, _, _) in BINARY.items() for of in types]
UNARY_CASES = [(name, of) for name, (types, _, _) in UNARY.items() for of in types]


def binary(name: str, of: Scalar) -> Lanewise:
    return Lanewise(f"{name}_{of}", (of, of), of, BINARY[name][1])


def comparisons(of: Scalar) -> Lanewise:
    """All of them at once, a bit each."""

    def trace(k: Kernel, a: Value, b: Value) -> Value:
        bits = k.const(vec(u8, 16), 0)
        for number, (compare, _) in enumerate(COMPARISONS.values()):
            bits |= compare(a, b).to(u8) << number
        return bits

    return Lanewise(f"compare_{of}", (of, of), u8, trace)


def unary(name: str, of: Scalar) -> Lanewise:
    return Lanewise(f"{name}_{of}", (of,), of, UNARY[name][1])


def shift(of: Scalar, *, left: bool, lanes: int = 16) -> Lanewise:
    def trace(k: Kernel, a: Value, b: Value) -> Value:
        return a << b if left else a >> b

    return Lanewise(f"shift_{'left' if left else 'right'}_{of}", (of, of), of, trace, lanes)


# Widths that no register has, one lane, and more than a register.
FMA = {
    lanes: Lanewise(f"fma_{lanes}", (f32, f32, f32), f32, lambda k, *v: k.fma(*v), lanes) for lanes in (1, 5, 16, 48)
}


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    operations = [
        *(binary(*case) for case in BINARY_CASES),
        *(comparisons(of) for of in (*INTEGERS, *FLOATS)),
        *(unary(*case) for case in UNARY_CASES),
        *(shift(of, left=left) for of in INTEGERS for left in (True, False)),
        *FMA.values(),
    ]
    return Everywhere([*(each.kernel() for each in operations), *SCALAR_KERNELS])


@pytest.mark.parametrize(("name", "of"), BINARY_CASES, ids=str)
def test_binary_operators(everywhere: Everywhere, name: str, of: Scalar) -> None:
    a, b = pairs(of, np.random.default_rng(1))
    with np.errstate(all="ignore"):
        assert_same_bits(everywhere.lanewise(binary(name, of), a, b), BINARY[name][2](a, b))


@pytest.mark.parametrize("of", [*INTEGERS, *FLOATS], ids=str)
def test_comparisons(everywhere: Everywhere, of: Scalar) -> None:
    a, b = pairs(of, np.random.default_rng(2))
    found = everywhere.lanewise(comparisons(of), a, b)
    for number, (name, (_, reference)) in enumerate(COMPARISONS.items()):
        assert ((found >> number & 1) == reference(a, b)).all(), name


@pytest.mark.parametrize(("name", "of"), UNARY_CASES, ids=str)
def test_unary_operators(everywhere: Everywhere, name: str, of: Scalar) -> None:
    a = singles(of, np.random.default_rng(3))
    with np.errstate(all="ignore"):
        assert_same_bits(everywhere.lanewise(unary(name, of), a), UNARY[name][2](a))


@pytest.mark.parametrize("of", INTEGERS, ids=str)
def test_right_shifts_copy_the_sign_of_signed_types_only(everywhere: Everywhere, of: Scalar) -> None:
    rng = np.random.default_rng(4)
    a = singles(of, rng, 300)
    amount = (np.arange(len(a)) % of.bits).astype(a.dtype)
    exact = [int(x) >> int(s) for x, s in zip(a, amount, strict=True)]
    assert (everywhere.lanewise(shift(of, left=False), a, amount) == np.array(exact, a.dtype)).all()
    wrapped = [(int(x) << int(s)) % 2**of.bits for x, s in zip(a, amount, strict=True)]
    assert everywhere.lanewise(shift(of, left=True), a, amount).view(f"u{a.itemsize}").tolist() == wrapped


@pytest.mark.parametrize("lanes", FMA)
def test_fma_rounds_once(everywhere: Everywhere, lanes: int) -> None:
    rng = np.random.default_rng(5)
    edges = singles(f32, rng, 0)
    a, b, c = (each.reshape(-1) for each in np.meshgrid(edges[::2], edges[::3], edges, indexing="ij"))
    n = 1500
    # Random bits seldom come near each other: close products and addends, and halfway cases, are made on purpose.
    x, y = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    near = -(x * y) * np.float32(2.0) ** rng.integers(-26, 3, n).astype(np.float32)
    tiny = x * np.float32(2.0) ** rng.integers(-80, -60, n).astype(np.float32)
    almost = almost_halfway(rng)
    a = np.concatenate([a, random_bits(rng, f32, n), x, tiny, almost[0]])
    b = np.concatenate([b, random_bits(rng, f32, n), y, tiny[::-1], almost[1]])
    c = np.concatenate([c, random_bits(rng, f32, n), near, tiny * np.float32(2.0**-60), almost[2]])
    found = everywhere.lanewise(FMA[lanes], a, b, c)
    for p, q, r, y_found in list(zip(a, b, c, found, strict=True))[:: 3 if lanes == 16 else 20]:
        check_rounded_once(p, q, r, y_found)


def almost_halfway(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Sums that miss the middle between two f32 by so little that f64 takes them for the middle.

    The product is half a unit of c's last place times 1 - 2**-46; c is odd, so that a tie would go the other way.
    """
    n = 400
    scale = np.float32(2.0) ** rng.integers(-20, 20, n).astype(np.float32)
    signs = rng.choice(np.array([-1, 1], np.float32), (3, n))
    odd = 1 + np.float32(2.0**-23) * (2 * rng.integers(0, 2**22, n) + 1).astype(np.float32)
    a = np.float32(2.0**-12 * (1 + 2.0**-23)) * signs[0] * scale
    b = np.float32(2.0**-12 * (1 - 2.0**-23)) * signs[1]
    return a, b, odd * signs[2] * scale


def check_rounded_once(a: np.float32, b: np.float32, c: np.float32, found: np.float32) -> None:
    """The result is the f32 nearest to the exact value, the even one of two: nothing but integers decides."""
    if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
        with np.errstate(all="ignore"):
            # No product overflows f64, so infinities and NaN come out alike.
            assert_same_bits(np.array([found]), np.array([np.float64(a) * np.float64(b) + np.float64(c)], np.float32))
        return
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    largest = Fraction(float(np.finfo(np.float32).max))
    if abs(exact) >= largest + Fraction(2) ** 103:
        assert np.isinf(found)
        assert (found > 0) == (exact > 0)
        return
    assert np.isfinite(found)
    error = abs(Fraction(float(found)) - exact)
    for toward in (np.float32(-np.inf), np.float32(np.inf)):
        with np.errstate(over="ignore", under="ignore"):
            neighbour = np.nextafter(found, toward)
        if np.isfinite(neighbour):
            other = abs(Fraction(float(neighbour)) - exact)
            is_even = int(found.view(np.uint32)) % 2 == 0
            assert error < other or (error == other and is_even)


def _integer_scalars() -> Kernel:
    k = Kernel("floor_and_modulo", a=i64, b=i64, out=ptr(i64))
    a, b, out = k.args
    k.store(out, a // b)
    k.store(out + 1, a % b)
    return k


def _unsigned_scalars() -> Kernel:
    k = Kernel("unsigned_floor_and_modulo", a=u32, b=u32, out=ptr(u32))
    a, b, out = k.args
    k.store(out, a // b)
    k.store(out + 1, a % b)
    return k


def _number_on_the_left() -> Kernel:
    k = Kernel("number_on_the_left", x=f32, out=ptr(f32))
    x, out = k.args
    for index, value in enumerate((1 + x, 1 - x, 3 * x, 1 / x)):
        k.store(out + index, value)
    return k


SCALAR_KERNELS = [build().finish() for build in (_integer_scalars, _unsigned_scalars, _number_on_the_left)]


@pytest.mark.parametrize("a", [0, 1, 7, -7, 6, -6, 2**62, -(2**63)])
@pytest.mark.parametrize("b", [1, 2, 3, -3, 7, -7, 2**62])
def test_integer_division_rounds_down_as_in_python(everywhere: Everywhere, a: int, b: int) -> None:
    (out,) = everywhere.run("floor_and_modulo", lambda: [a, b, np.zeros(2, np.int64)])
    assert out.tolist() == [a // b, a % b]


def test_division_of_unsigned_scalars(everywhere: Everywhere) -> None:
    (out,) = everywhere.run("unsigned_floor_and_modulo", lambda: [2**32 - 1, 10, np.zeros(2, np.uint32)])
    assert out.tolist() == [(2**32 - 1) // 10, 5]


def test_numbers_stand_on_the_left_of_operators_too(everywhere: Everywhere) -> None:
    (out,) = everywhere.run("number_on_the_left", lambda: [0.25, np.zeros(4, np.float32)])
    assert out.tolist() == [1.25, 0.75, 0.75, 4.0]
