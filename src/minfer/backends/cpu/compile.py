"""From the kernels of a tape to machine code, by way of the cache of compiled objects."""

from __future__ import annotations

import hashlib
from pathlib import Path

from minfer import simd
from minfer.backends.cpu.kernels.walker import trace_begin, trace_work
from minfer.backends.cpu.tape import Tape
from minfer.hub import Progress
from minfer.simd import KernelIR, NativeModule, Target, compile_kernels
from minfer.simd.cache import digest_of_package, load_or_compile, open_cache


def compile_tape(tape: Tape, target: Target, kernel_cache: Path | None, progress: Progress | None) -> NativeModule:
    """The module with every kernel of the tape, and the walker."""

    def trace() -> list[KernelIR]:
        if progress is not None:
            progress.start(f"compiling {len(tape.kernels)} kernels for {target.name}", None)
        return [trace_work(), trace_begin(), *(each() for each in tape.kernels.values())]

    try:
        if kernel_cache is None:
            return compile_kernels(trace(), target)
        here = Path(__file__).parent
        cache = open_cache(kernel_cache, digest_of_package(here, Path(simd.__file__).parent))
        key = hashlib.blake2b("\n".join(sorted(tape.kernels)).encode()).hexdigest()
        return load_or_compile(key, trace, target, cache)
    finally:
        if progress is not None:
            progress.finish()
