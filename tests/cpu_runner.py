"""Runs single kernels of the CPU backend: argument block, step block and chunks by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import N_STEP_WORDS, StepWord
from minfer.simd import KernelIR, NativeModule, compile_kernels, host_target_names, interpret, target_named

Array = NDArray[np.generic]
TARGETS = host_target_names()
"""Every instruction set that runs here."""
INTERPRETER = "interpreter"
"""Instead of a target: runs the kernel without compiling it, with every access checked. For small shapes."""


def aligned(array: Array) -> Array:
    """A copy at an aligned address."""
    source = np.ascontiguousarray(array)
    copy = aligned_zeros(source.nbytes).view(source.dtype).reshape(source.shape)
    copy[...] = source
    return copy


def shared_kernels(factory: pytest.TempPathFactory) -> Path:
    """A directory of compiled kernels that all tests of a run share, and its other workers."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"


@cache
def compiled(kernel: KernelIR, target: str) -> NativeModule:
    return compile_kernels([kernel], target_named(target))


def run_kernel(
    kernel: KernelIR,
    arguments: Sequence[Array | int | None],
    chunks: Iterable[int],
    *,
    n_tokens: int = 1,
    n_outputs: int = 1,
    inputs: dict[StepWord, Array] | None = None,
    target: str = TARGETS[0],
    scratch_bytes: int = 1 << 20,
) -> None:
    """Runs some chunks of a kernel, in the order given. An argument that is None is a null pointer."""
    words = [0 if a is None else a if isinstance(a, int) else a.ctypes.data for a in arguments]
    block = np.array([*words, 0], np.int64)
    step = np.zeros(N_STEP_WORDS, np.int64)
    step[StepWord.N_TOKENS], step[StepWord.N_OUTPUTS] = n_tokens, n_outputs
    for word, array in (inputs or {}).items():
        step[word] = array.ctypes.data
    scratch = aligned_zeros(scratch_bytes)
    scratch[:] = 0xFF
    if target == INTERPRETER:
        arrays = [each for each in (*arguments, *(inputs or {}).values()) if isinstance(each, np.ndarray)]
        for chunk in chunks:
            interpret(kernel, block, step, chunk, scratch, buffers=arrays)
        return
    call = compiled(kernel, target)[kernel.name].raw
    for chunk in chunks:
        call(block.ctypes.data, step.ctypes.data, chunk, scratch.ctypes.data)


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normally distributed numbers, at an aligned address."""
    return aligned(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def near_halves(n_blocks: int) -> NDArray[np.float32]:
    """Blocks [n_blocks, 32] whose every value lies at or next to the border between two integers, as 8 bits see it."""
    rng = np.random.default_rng(3)
    largest = rng.uniform(1, 9, (n_blocks, 1)) * 10.0 ** rng.integers(-6, 5, (n_blocks, 1))
    borders = (rng.integers(0, 126, (n_blocks, 32)) + 0.5) * (largest / 127)
    values = borders.astype(np.float32).view(np.int32) + rng.integers(-3, 4, (n_blocks, 32)).astype(np.int32)
    x = values.view(np.float32) * rng.choice(np.float32([-1, 1]), (n_blocks, 32))
    x[:, 0] = largest[:, 0]
    return x


def check_chunks_are_disjoint(
    run: Callable[[Iterable[int], Sequence[Array]], None], outputs: Sequence[Array], n_chunks: int
) -> None:
    """Each chunk alone changes bytes that no other does, and together they make what one run of all makes.

    `run(chunks, outputs)` runs some chunks on memory of the shape and contents of `outputs`; what is in it must not be
    what a kernel writes, or the change is not seen.
    """
    whole = [aligned(each) for each in outputs]
    run(range(n_chunks), whole)
    merged = [aligned(each) for each in outputs]
    taken = [np.zeros(each.nbytes, bool) for each in outputs]
    for chunk in range(n_chunks):
        alone = [aligned(each) for each in outputs]
        run([chunk], alone)
        n_changed = 0
        for before, after, into, owned in zip(outputs, alone, merged, taken, strict=True):
            changed = _bytes(before) != _bytes(after)
            assert not (changed & owned).any(), f"chunk {chunk} writes what another has written"
            owned |= changed
            _bytes(into)[changed] = _bytes(after)[changed]
            n_changed += int(changed.sum())
        assert n_changed, f"chunk {chunk} writes nothing"
    for got, want in zip(merged, whole, strict=True):
        assert same_bits(got, want)


def _bytes(array: Array) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape and type are the same bytes."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def check_close(got: Array, want: Array, bound: Array | float) -> None:
    """|got - want| <= bound everywhere; tells the worst element."""
    excess = np.abs(got.astype(np.float64) - want) - bound
    assert not np.isnan(excess).any(), "NaN"
    worst = np.unravel_index(int(excess.argmax()), excess.shape)
    limit = np.broadcast_to(bound, excess.shape)[worst]
    assert excess[worst] <= 0, f"at {worst}: {got[worst]} and {want[worst]}, allowed difference {limit}"
