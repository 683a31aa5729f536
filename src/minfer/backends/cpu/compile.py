"""From the kernels of a tape to machine code, by way of the cache of compiled objects."""

from __future__ import annotations

import hashlib
from pathlib import Path

from minfer import graph, quants, simd
from minfer.backends.cpu.kernels.walker import trace_begin, trace_work
from minfer.backends.cpu.tape import Tape
from minfer.hub import Progress
from minfer.simd import KernelIR, NativeModule, Target, compile_kernels
from minfer.simd.cache import digest_of_package, load_or_compile, open_cache


def compile_tape(tape: Tape, target: Target, kernel_cache: Path | None, progress: Progress | None) -> NativeModule:
    """The module with every kernel of the tape, and the walker."""
    compiles = False

    def trace() -> list[KernelIR]:
        nonlocal compiles
        compiles = True
        if progress is not None:
            progress.start(f"compiling {len(tape.kernels)} kernels for {target.name}", None)
        return [trace_work(), trace_begin(), *(each() for each in tape.kernels.values())]

    try:
        if kernel_cache is None:
            return compile_kernels(trace(), target)
        # Kernels are made of the constants of these packages: page sizes, levels of codes, layouts of blocks.
        files = (__file__, graph.__file__, quants.__file__, simd.__file__)
        cache = open_cache(kernel_cache, digest_of_package(*(Path(file).parent for file in files)))
        key = hashlib.blake2b("\n".join(sorted(tape.kernels)).encode()).hexdigest()
        return load_or_compile(key, trace, target, cache)
    finally:
        if progress is not None and compiles:
            progress.finish()
