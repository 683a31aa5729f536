"""How the native walker and the kernels talk to each other.

Every kernel is called as `kernel(args, step, chunk, scratch)`:
- `args` points to the node's argument block: 64-bit words that are set once, when the plan is made (addresses of arena
  buffers, weights, KV regions; numbers that are not traced as constants).
- `step` points to the step block, the words of `StepWord`, which the host fills before every step.
- `scratch` is memory of the calling thread, 64-byte aligned, at least as large as the largest `Entry.scratch_bytes`;
  its contents are nobody's between two calls.
- `chunk` counts from 0 to the number of chunks of this step: `n_tiles * n_parts`, where a tile is some rows (tokens,
  or output rows) and a part a share of the columns, heads or panels. A kernel decides which of the two changes
  faster from chunk to chunk.

Chunks of one entry write disjoint outputs, so it does not matter which thread runs which. Between two entries all
threads meet (unless the first says `barrier=False`), so an entry may read whatever an earlier one wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from minfer.simd import Kernel, Value, i64, kernel_ptr, ptr, u8
from minfer.simd.types import Pointee


class StepWord(IntEnum):
    """The words of the step block: counts, then addresses of the step's int32 inputs."""

    N_TOKENS = 0
    N_OUTPUTS = 1
    TOKENS = 2
    POSITIONS = 3
    CELLS = 4
    SPANS = 5
    PAGES = 6
    OUTPUT_ROWS = 7


N_STEP_WORDS = len(StepWord)


@dataclass(frozen=True)
class Entry:
    """One entry of the tape: a kernel, its arguments, and how its work is cut.

    With `n` rows this step (the step word `rows`), there are `ceil(n / rows_per_chunk) * n_parts` chunks; with
    `rows_per_chunk` 0, every chunk sees all rows and there are `n_parts`. The entry runs only when
    `min_rows <= n <= max_rows`.
    """

    kernel: str
    arguments: tuple[int, ...]
    rows: StepWord
    rows_per_chunk: int
    n_parts: int
    name: str = ""
    min_rows: int = 1
    max_rows: int = 1 << 40
    scratch_bytes: int = 0
    barrier: bool = True
    """whether all threads meet after it; False where the next entry does not depend on it"""


def tape_kernel(name: str) -> tuple[Kernel, Value, Value, Value]:
    """Begins to trace a kernel that the walker can call: the kernel, and its first three parameters."""
    k = Kernel(name, args=ptr(i64), step=ptr(i64), chunk=i64, scratch=ptr(u8))
    args, step, chunk, _ = k.args
    return k, args, step, chunk


def thread_scratch(k: Kernel) -> Value:
    """The calling thread's scratch memory, as bytes."""
    return k.args[3]


TAPE_KERNEL = kernel_ptr(ptr(i64), ptr(i64), i64, ptr(u8))
"""The type of a pointer to such a kernel."""


def argument_pointer(k: Kernel, args: Value, index: int, to: Pointee) -> Value:
    """The address in word `index` of the argument block."""
    return k.load((args + index).cast(ptr(to)))


def argument(k: Kernel, args: Value, index: int) -> Value:
    """The number in word `index` of the argument block."""
    return k.load(args + index)


def step_count(k: Kernel, step: Value, word: StepWord) -> Value:
    """A count of the step block (i64)."""
    return k.load(step + int(word))


def step_pointer(k: Kernel, step: Value, word: StepWord, to: Pointee) -> Value:
    """An input array of the step."""
    return k.load((step + int(word)).cast(ptr(to)))
