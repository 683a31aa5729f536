"""Runs kernels on every target of this machine and in the interpreter, and compares the bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.simd import (
    Kernel,
    KernelIR,
    NativeModule,
    Scalar,
    Value,
    compile_kernels,
    host_target_names,
    i64,
    interpret,
    ptr,
    target_named,
)

Array = NDArray[Any]

DTYPES = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
}


def distinct_targets() -> list[str]:
    """This machine's targets without those that differ from another in `dot4` alone."""
    names = host_target_names()
    return [name for name in names if not (name == "avx512bw" and "avx512" in names)]


@dataclass(frozen=True)
class Lanewise:
    """An operation on arrays: `trace` makes a vector of the operands' vectors, `lanes` at a time.

    Whole vectors only: a mask on every access would take LLVM far longer than what is tested.
    """

    name: str
    operands: tuple[Scalar, ...]
    result: Scalar
    trace: Callable[..., Value]
    lanes: int = 16

    def kernel(self) -> KernelIR:
        pointers = {f"p{i}": ptr(of) for i, of in enumerate(self.operands)}
        k = Kernel(self.name, **pointers, out=ptr(self.result), n=i64)
        *operands, out, n = k.args
        with k.loop(0, n, self.lanes) as i:
            k.store(out + i, self.trace(k, *(k.load(p + i, self.lanes) for p in operands)))
        return k.finish()


class Everywhere:
    """Kernels compiled for every target that runs here, and interpreted."""

    def __init__(self, kernels: Sequence[KernelIR], targets: Sequence[str] | None = None) -> None:
        self.kernels = {kernel.name: kernel for kernel in kernels}
        self.modules: dict[str, NativeModule] = {
            name: compile_kernels(kernels, target_named(name)) for name in targets or distinct_targets()
        }

    def run(self, name: str, arguments: Callable[[], Sequence[Any]]) -> list[Array]:
        """Runs a kernel once a target and once interpreted, each with its own arguments.

        The arrays as the kernel leaves them, after comparing them between all runs.
        """
        expected = list(arguments())
        interpret(self.kernels[name], *expected)
        for target, module in self.modules.items():
            given = list(arguments())
            module[name](*given)
            for number, (a, b) in enumerate(zip(given, expected, strict=True)):
                if isinstance(a, np.ndarray):
                    assert_same_bits(a, b, f"{name} on {target}, argument {number}")
        return [each for each in expected if isinstance(each, np.ndarray)]

    def lanewise(self, operation: Lanewise, *operands: Array) -> Array:
        """The result of a lanewise operation, the same from all targets and the interpreter."""
        n = len(operands[0])
        whole = -(-n // operation.lanes) * operation.lanes
        padded = [np.resize(each, whole) for each in operands]
        dtype = DTYPES[operation.result.name]
        return self.run(operation.name, lambda: [*padded, np.zeros(whole, dtype), whole])[-1][:n]


def assert_same_bits(actual: Array, expected: Array, what: str = "") -> None:
    """Arrays are equal bit for bit, except that any NaN equals any other."""
    assert actual.dtype == expected.dtype, what
    a, b = actual.reshape(-1), expected.reshape(-1)
    same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
    if a.dtype.kind == "f":
        same |= np.isnan(a) & np.isnan(b)
    if not same.all():
        first = int(np.flatnonzero(~same)[0])
        raise AssertionError(f"{what}: element {first} is {a[first]!r}, not {b[first]!r} ({(~same).sum()} differ)")


def edge_values(of: Scalar) -> Array:
    """Values of a type that break things, and some that don't."""
    dtype = np.dtype(DTYPES[of.name])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        small = [0, 1, 2, 3, 7, 100, 127]
        near = [limits.min, limits.min + 1, limits.max, limits.max - 1, limits.max // 2, limits.max // 2 + 1]
        return np.array([*small, *near, *([-1, -2, -100] if limits.min < 0 else [])], dtype)
    limits = np.finfo(dtype)
    positive = [0.0, limits.smallest_subnormal, limits.tiny, limits.max, np.inf, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 1e3]
    border = [2.0**23 - 0.5, 2.0**23 + 1, 2.0**31, 2.0**31 - 128, 2.0**52 + 1] if dtype.itemsize > 2 else []
    with np.errstate(over="ignore"):
        half = np.array([*positive, *border], dtype)
    # A subnormal number that is no power of two, and the largest one.
    subnormal = np.array([5 * limits.smallest_subnormal, limits.tiny - limits.smallest_subnormal], dtype)
    half = np.concatenate([half, subnormal])
    return np.concatenate([half, -half, np.array([np.nan], dtype)])


def random_bits(rng: np.random.Generator, of: Scalar, n: int) -> Array:
    """Values of a type with every bit random: all exponents, NaN and infinities for floats."""
    dtype = np.dtype(DTYPES[of.name])
    return rng.integers(0, 256, n * dtype.itemsize, dtype=np.uint8).view(dtype)


def pairs(of: Scalar, rng: np.random.Generator, n_random: int = 500) -> tuple[Array, Array]:
    """Every pair of edge values, then random ones."""
    edges = edge_values(of)
    a, b = (each.reshape(-1) for each in np.meshgrid(edges, edges, indexing="ij"))
    return (
        np.concatenate([a, random_bits(rng, of, n_random)]),
        np.concatenate([b, random_bits(rng, of, n_random)]),
    )


def singles(of: Scalar, rng: np.random.Generator, n_random: int = 2000) -> Array:
    """The edge values, then random ones."""
    return np.concatenate([edge_values(of), random_bits(rng, of, n_random)])
