"""The threads of one model: persistent, spinning briefly between steps, asleep when there is nothing to do."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import N_STEP_WORDS, Entry
from minfer.backends.cpu.kernels.walker import (
    COUNTER_STRIDE,
    ENTRY_WORDS,
    LINE_WORDS,
    N_SHARED_WORDS,
    SharedWord,
)
from minfer.backends.cpu.os_threads import yield_address
from minfer.errors import ParameterError
from minfer.simd import NativeKernel, NativeModule

SPIN_S = 0.002
"""How long a worker waits awake for the next step: longer than sampling a token takes, too short to be felt."""
_SPINS_TO_MEASURE = 20_000


class Pool:
    """`n_threads` threads, the caller's included, that walk one tape. Not for calls from two threads at a time."""

    def __init__(self, module: NativeModule, entries: Sequence[Entry], n_threads: int, scratch_bytes: int) -> None:
        self.step_block = aligned_zeros(N_STEP_WORDS * 8).view(np.int64)
        self._module = module
        self._n_threads = n_threads
        self._closed = False
        self._shared = aligned_zeros(N_SHARED_WORDS * 8).view(np.int64)
        self._counters = aligned_zeros(max(1, len(entries)) * COUNTER_STRIDE * 8).view(np.int64)
        self._arguments = [np.array([*entry.arguments, 0], np.int64) for entry in entries]
        self._tape = self._make_tape(entries)
        self._scratch = [aligned_zeros(max(64, scratch_bytes)) for _ in range(n_threads)]
        for word, value in {
            SharedWord.N_THREADS: n_threads,
            SharedWord.STEP: self.step_block.ctypes.data,
            SharedWord.COUNTERS: self._counters.ctypes.data,
            SharedWord.YIELD: yield_address(),
        }.items():
            self._shared[int(word) * LINE_WORDS] = value
        self._condition = threading.Condition()
        self._workers = _start_workers(self, n_threads - 1) if n_threads > 1 else []
        self._walk, self._begin = module["walk"].raw, module["begin"].raw
        self._addresses = (self._shared.ctypes.data, self._scratch[0].ctypes.data)

    def run(self, first: int, stop: int) -> None:
        """Walks the entries from `first` to before `stop` once, with the step block as it is.

        Raises:
            ParameterError: the pool is closed.
        """
        if self._closed:
            raise ParameterError("the threads have ended: the model is closed")
        self._counters[:] = 0
        self._shared[SharedWord.TAPE * LINE_WORDS] = self._tape.ctypes.data + first * ENTRY_WORDS * 8
        self._shared[SharedWord.N_ENTRIES * LINE_WORDS] = stop - first
        shared, scratch = self._addresses
        if not self._workers:
            self._walk(shared, scratch)
            return
        before = int(self._shared[SharedWord.GENERATION])
        try:
            with self._condition:
                self._begin(shared)
                self._condition.notify_all()
        finally:
            # Also after an interrupt: workers that have begun wait for this thread at the first barrier.
            if self._shared[SharedWord.GENERATION] != before:
                self._walk(shared, scratch)

    def close(self) -> None:
        """Ends the threads."""
        self._closed = True
        if self._workers:
            with self._condition:
                self._shared[SharedWord.STOP * LINE_WORDS] = 1
                self._condition.notify_all()
            for worker in self._workers:
                worker.join()
            self._workers = []

    def _make_tape(self, entries: Sequence[Entry]) -> NDArray[np.int64]:
        tape = np.zeros((max(1, len(entries)), ENTRY_WORDS), np.int64)
        for row, entry, arguments in zip(tape, entries, self._arguments, strict=False):
            row[:] = (
                self._module.address(entry.kernel),
                arguments.ctypes.data,
                int(entry.rows),
                entry.rows_per_chunk,
                entry.n_parts,
                entry.min_rows,
                entry.max_rows,
                int(entry.barrier),
            )
        return tape


def _start_workers(pool: Pool, n_workers: int) -> list[threading.Thread]:
    # A worker holds no reference to the pool, so that a forgotten pool can be collected and ends its threads.
    shared, condition, scratch = pool._shared, pool._condition, pool._scratch
    work = pool._module["work"]
    workers = []
    for index in range(n_workers):
        arguments = (work, shared, condition, scratch[index + 1])
        worker = threading.Thread(target=_work, args=arguments, name=f"minfer-{index + 1}", daemon=True)
        worker.start()
        workers.append(worker)
    weakref.finalize(pool, _stop, shared, condition)
    return workers


def _stop(shared: NDArray[np.int64], condition: threading.Condition) -> None:
    with condition:
        shared[SharedWord.STOP * LINE_WORDS] = 1
        condition.notify_all()


def _work(
    work: NativeKernel, shared: NDArray[np.int64], condition: threading.Condition, scratch: NDArray[np.uint8]
) -> None:
    seen = np.zeros(1, np.int64)
    addresses = (shared.ctypes.data, scratch.ctypes.data, seen.ctypes.data)
    begin_s = time.perf_counter()
    work.raw(*addresses, _SPINS_TO_MEASURE)
    spins_per_s = _SPINS_TO_MEASURE / max(time.perf_counter() - begin_s, 1e-6)
    max_spins = max(1, int(SPIN_S * spins_per_s))
    while not shared[SharedWord.STOP * LINE_WORDS]:
        work.raw(*addresses, max_spins)
        with condition:
            # The generation only changes under the condition, so no step can begin unnoticed in between.
            while shared[0] == seen[0] and not shared[SharedWord.STOP * LINE_WORDS]:
                condition.wait()
