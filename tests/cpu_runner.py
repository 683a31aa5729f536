"""Runs single kernels of the CPU backend: argument block, step block and chunks by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import N_STEP_WORDS, StepWord
from minfer.simd import KernelIR, NativeModule, compile_kernels, host_target_names, target_named

Array = NDArray[np.generic]
TARGETS = host_target_names()
"""Every instruction set that runs here."""


def aligned(array: Array) -> Array:
    """A copy at an aligned address."""
    source = np.ascontiguousarray(array)
    copy = aligned_zeros(source.nbytes).view(source.dtype).reshape(source.shape)
    copy[...] = source
    return copy


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
    """Runs some chunks of a kernel, in the order given."""
    words = [0 if a is None else a if isinstance(a, int) else a.ctypes.data for a in arguments]
    block = np.array([*words, 0], np.int64)
    step = np.zeros(N_STEP_WORDS, np.int64)
    step[StepWord.N_TOKENS], step[StepWord.N_OUTPUTS] = n_tokens, n_outputs
    for word, array in (inputs or {}).items():
        step[word] = array.ctypes.data
    scratch = aligned_zeros(scratch_bytes)
    scratch[:] = 0xFF
    call = compiled(kernel, target)[kernel.name].raw
    for chunk in chunks:
        call(block.ctypes.data, step.ctypes.data, chunk, scratch.ctypes.data)


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
