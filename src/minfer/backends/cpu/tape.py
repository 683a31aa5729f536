"""Builds the tape of a program: entries, the kernels that they need, and the buffers between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import Entry, StepWord
from minfer.simd import KernelIR


@dataclass
class Tape:
    """A tape while it is built. Kernels are traced only when they are compiled, which a warm cache makes
    unnecessary."""

    entries: list[Entry] = field(default_factory=list)
    kernels: dict[str, Callable[[], KernelIR]] = field(default_factory=dict)
    buffers: list[NDArray[np.uint8]] = field(default_factory=list)

    def kernel(self, trace: Callable[..., KernelIR], *constants: object, key: str | None = None) -> str:
        """The name of the kernel that `trace(*constants)` gives; one kernel for equal constants.

        `key` stands for the constants where their text does not say all that they are.
        """
        described = f"{trace.__module__}.{trace.__qualname__} {key or constants!r}"
        digest = hashlib.blake2b(described.encode(), digest_size=8).hexdigest()
        name = f"{trace.__name__}_{digest}"
        self.kernels.setdefault(name, lambda: replace(trace(*constants), name=name))
        return name

    def add(
        self,
        kernel: str,
        arguments: tuple[int, ...],
        *,
        rows: StepWord,
        rows_per_chunk: int,
        n_parts: int = 1,
        min_rows: int = 1,
        max_rows: int = 1 << 40,
        scratch_bytes: int = 0,
        barrier: bool = True,
    ) -> None:
        """Appends an entry."""
        self.entries.append(
            Entry(
                kernel=kernel,
                arguments=arguments,
                rows=rows,
                rows_per_chunk=rows_per_chunk,
                n_parts=n_parts,
                min_rows=min_rows,
                max_rows=max_rows,
                scratch_bytes=scratch_bytes,
                barrier=barrier,
            )
        )

    def buffer(self, n_bytes: int) -> NDArray[np.uint8]:
        """Memory that lives as long as the program."""
        memory = aligned_zeros(n_bytes)
        self.buffers.append(memory)
        return memory

    @property
    def scratch_bytes(self) -> int:
        return max((entry.scratch_bytes for entry in self.entries), default=0)
