"""The walker: native code in which all threads walk the same tape, entry by entry.

For every entry each thread takes chunks from an atomic counter until there are none; then all meet at a barrier.
Outputs of chunks are disjoint, so who computes what does not matter.

Tape: `ENTRY_WORDS` 64-bit words an entry: kernel address, argument block address, step word of the rows, rows a
chunk, number of parts, smallest and largest number of rows, whether a barrier follows.
Shared block: the words of `SharedWord`, each in a cache line of its own.
Counters: one word an entry, `COUNTER_STRIDE` words apart; zero when a step begins.

Bound by: the barrier, some 100 ns with two threads that are both running. Source: the sense-reversing barrier of
Mellor-Crummey and Scott (1991), with a count in place of the sense.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from minfer.backends.cpu.convention import TAPE_KERNEL
from minfer.simd import Kernel, KernelIR, Ordering, Value, i64, kernel_ptr, ptr, u8

ENTRY_WORDS = 8
COUNTER_STRIDE = 8
LINE_WORDS = 8
_SPINS_BEFORE_YIELD = 4000


class SharedWord(IntEnum):
    """Words of the shared block, by cache line."""

    GENERATION = 0
    """counts steps; a thread that sees it change begins to walk"""
    ARRIVED = 1
    """threads at the barrier"""
    PASSED = 2
    """counts barriers that all have reached"""
    STOP = 3
    """not zero: threads leave"""
    N_THREADS = 4
    TAPE = 5
    N_ENTRIES = 6
    STEP = 7
    COUNTERS = 8
    YIELD = 9
    """address of the operating system's function that gives the core to another thread"""


N_SHARED_WORDS = len(SharedWord) * LINE_WORDS


def _word(shared: Value, word: SharedWord) -> Value:
    return shared + int(word) * LINE_WORDS


def trace_walk() -> KernelIR:
    """walk(shared, scratch): walks the tape once, together with the other threads."""
    k = Kernel("walk", shared=ptr(i64), scratch=ptr(u8))
    shared, scratch = k.args
    n_threads = k.load(_word(shared, SharedWord.N_THREADS))
    tape = k.load(_word(shared, SharedWord.TAPE).cast(ptr(i64)))
    step = k.load(_word(shared, SharedWord.STEP).cast(ptr(i64)))
    counters = k.load(_word(shared, SharedWord.COUNTERS).cast(ptr(i64)))
    with k.loop(0, k.load(_word(shared, SharedWord.N_ENTRIES))) as index:
        entry = tape + index * ENTRY_WORDS
        n_rows = k.load(step + k.load(entry + 2))
        runs = (n_rows >= k.load(entry + 5)) & (n_rows <= k.load(entry + 6))
        with k.if_(runs):
            _take_chunks(k, entry, step, counters + index * COUNTER_STRIDE, n_rows, scratch)
            with k.if_((k.load(entry + 7)).ne(0)):
                _meet(k, shared, n_threads)
    # Whatever the last entry says, a step ends when all are done.
    _meet(k, shared, n_threads)
    return k.finish()


def _take_chunks(k: Kernel, entry: Value, step: Value, counter: Value, n_rows: Value, scratch: Value) -> None:
    kernel = k.load(entry.cast(TAPE_KERNEL))
    args = k.load((entry + 1).cast(ptr(i64)))
    rows_per_chunk = k.load(entry + 3)
    n_tiles = k.var(k.const(i64, 1))
    with k.if_(rows_per_chunk > 0):
        n_tiles.set((n_rows + rows_per_chunk - 1) // rows_per_chunk)
    n_chunks = n_tiles.get() * k.load(entry + 4)
    chunk = k.var(k.atomic_add(counter, 1, Ordering.RELAXED))
    with k.while_(lambda: chunk.get() < n_chunks):
        k.call(kernel, args, step, chunk.get(), scratch)
        chunk.set(k.atomic_add(counter, 1, Ordering.RELAXED))


def _meet(k: Kernel, shared: Value, n_threads: Value) -> None:
    """A barrier: the last to arrive lets all pass."""
    arrived, passed = _word(shared, SharedWord.ARRIVED), _word(shared, SharedWord.PASSED)
    with k.if_(n_threads > 1):
        before = k.atomic_load(passed, Ordering.ACQUIRE)
        with k.if_(k.atomic_add(arrived, 1, Ordering.SEQUENTIAL).eq(n_threads - 1)):
            k.atomic_store(arrived, 0, Ordering.RELAXED)
            k.atomic_add(passed, 1, Ordering.SEQUENTIAL)
        with k.else_():
            _spin_while(k, shared, lambda: k.atomic_load(passed, Ordering.ACQUIRE).eq(before))


def _spin_while(k: Kernel, shared: Value, condition: Callable[[], Value]) -> None:
    spins = k.var(k.const(i64, 0))
    with k.while_(condition):
        k.pause()
        spins.set(spins.get() + 1)
        with k.if_(spins.get() >= _SPINS_BEFORE_YIELD):
            # More threads than cores: the one that is waited for may need this core.
            k.call(k.load(_word(shared, SharedWord.YIELD).cast(kernel_ptr())))


def trace_work() -> KernelIR:
    """work(shared, scratch, seen, max_spins): what a worker runs: waits for steps after `seen`, walks each.

    `seen` points to the generation that the worker has done; it is kept up to date. Leaves when STOP is set, or when
    nothing has begun within `max_spins` turns of waiting: the caller then sleeps until it is woken.
    """
    walk = trace_walk()
    k = Kernel("work", shared=ptr(i64), scratch=ptr(u8), seen=ptr(i64), max_spins=i64)
    shared, scratch, seen, max_spins = k.args
    generation = _word(shared, SharedWord.GENERATION)
    spins = k.var(k.const(i64, 0))

    def goes_on() -> Value:
        stopped = k.atomic_load(_word(shared, SharedWord.STOP), Ordering.ACQUIRE).ne(0)
        return (spins.get() < max_spins) & ~stopped

    with k.while_(goes_on):
        now = k.atomic_load(generation, Ordering.ACQUIRE)
        with k.if_(now.ne(k.load(seen))):
            k.store(seen, now)
            k.call(walk, shared, scratch)
            spins.set(k.const(i64, 0))
        with k.else_():
            k.pause()
            spins.set(spins.get() + 1)
    return k.finish()


def trace_begin() -> KernelIR:
    """begin(shared): tells the workers that a step is ready. All that the host wrote before is seen by them."""
    k = Kernel("begin", shared=ptr(i64))
    (shared,) = k.args
    k.atomic_add(_word(shared, SharedWord.GENERATION), 1, Ordering.SEQUENTIAL)
    return k.finish()
