"""The threads: they end when they should, burn nothing when there is nothing to do, and pools don't disturb each
other."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from minfer.backends.cpu.convention import Entry, StepWord, argument, argument_pointer, tape_kernel, thread_scratch
from minfer.backends.cpu.kernels.walker import trace_begin, trace_work
from minfer.backends.cpu.pool import Pool
from minfer.errors import ParameterError
from minfer.simd import KernelIR, NativeModule, Ordering, compile_kernels, host_target, i64

N_ENTRIES, N_CHUNKS = 20, 50
N_SCRATCH_WORDS = 4096

linux_only = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="reads the state of threads, and their time on CPUs, from /proc"
)


def trace_count() -> KernelIR:
    """Adds what the entry before has counted in this chunk's cell, plus one."""
    k, args, _, chunk = tape_kernel("count")
    source, to = argument_pointer(k, args, 0, i64) + chunk, argument_pointer(k, args, 1, i64) + chunk
    k.store(to, k.load(to) + k.load(source) + 1)
    return k.finish()


@pytest.fixture(scope="module")
def module() -> NativeModule:
    return compile_kernels([trace_work(), trace_begin(), trace_count()], host_target())


def make_pool(module: NativeModule, n_threads: int) -> tuple[Pool, np.ndarray]:
    """A pool whose entry i adds row i + 1 to row i + 2: wrong unless every entry waits for all of the one before."""
    cells = np.zeros((N_ENTRIES + 1, N_CHUNKS), np.int64)
    entries = [
        Entry("count", (cells[i].ctypes.data, cells[i + 1].ctypes.data), StepWord.N_TOKENS, 0, N_CHUNKS)
        for i in range(N_ENTRIES)
    ]
    pool = Pool(module, entries, n_threads, scratch_bytes=64)
    pool.step_block[StepWord.N_TOKENS] = 1
    return pool, cells


def threads_of_minfer() -> int:
    return sum(thread.name.startswith("minfer-") for thread in threading.enumerate())


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
def test_entries_run_in_order_and_every_chunk_once(module: NativeModule, n_threads: int) -> None:
    pool, cells = make_pool(module, n_threads)
    for _ in range(20):
        cells[:] = 0
        pool.run(0, N_ENTRIES)
        assert (cells == np.arange(N_ENTRIES + 1)[:, None]).all()
    pool.close()


def test_a_part_of_the_tape(module: NativeModule) -> None:
    pool, cells = make_pool(module, 2)
    pool.run(3, 5)
    assert cells[:, 0].tolist() == [0, 0, 0, 0, 1, 2, *[0] * (N_ENTRIES - 5)]
    pool.close()


def test_closing_ends_the_threads(module: NativeModule) -> None:
    before = threads_of_minfer()
    pool, _ = make_pool(module, 3)
    assert threads_of_minfer() == before + 2
    pool.run(0, N_ENTRIES)
    pool.close()
    assert threads_of_minfer() == before
    pool.close()


def test_a_forgotten_pool_ends_its_threads(module: NativeModule) -> None:
    pool, _ = make_pool(module, 3)
    workers = list(pool._workers)
    pool.run(0, N_ENTRIES)
    del pool
    gc.collect()
    for worker in workers:
        worker.join(timeout=20)
        assert not worker.is_alive()


def rests(thread_id: int) -> bool:
    """Whether a thread waits in the kernel for a while without being woken once.

    One that spins is running, or ready to run; one that looks every now and then has used time on a CPU.
    """
    task = Path(f"/proc/self/task/{thread_id}")
    before = (task / "schedstat").read_text()
    time.sleep(0.05)
    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return state == "S" and (task / "schedstat").read_text() == before


@linux_only
@pytest.mark.parametrize("n_threads", [2, 4])
def test_workers_sleep_after_a_step_and_wake_for_the_next(module: NativeModule, n_threads: int) -> None:
    pool, cells = make_pool(module, n_threads)
    for _ in range(3):
        cells[:] = 0
        pool.run(0, N_ENTRIES)
        assert (cells == np.arange(N_ENTRIES + 1)[:, None]).all()
        for worker in pool._workers:
            # On a busy machine it may take a while until a worker has had its turn to stop spinning.
            assert any(rests(worker.native_id or 0) for _ in range(100))
    pool.close()


@linux_only
def test_one_that_spins_does_not_rest() -> None:
    """What the test above rests on."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert not any(rests(thread.native_id or 0) for _ in range(3))
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("rows_per_chunk", "n_rows"), [(0, 5), (1, 5), (4, 5), (4, 8), (7, 5)])
def test_an_entry_has_the_chunks_of_its_rows(module: NativeModule, rows_per_chunk: int, n_rows: int) -> None:
    n_parts = 3
    n_chunks = n_parts * (1 if rows_per_chunk == 0 else -(-n_rows // rows_per_chunk))
    zeros, counts = np.zeros(40, np.int64), np.zeros(40, np.int64)
    arguments = (zeros.ctypes.data, counts.ctypes.data)
    pool = Pool(module, [Entry("count", arguments, StepWord.N_OUTPUTS, rows_per_chunk, n_parts)], 2, 64)
    pool.step_block[StepWord.N_TOKENS], pool.step_block[StepWord.N_OUTPUTS] = 100, n_rows
    pool.run(0, 1)
    assert counts.tolist() == [1] * n_chunks + [0] * (40 - n_chunks)
    pool.close()


def test_an_entry_runs_for_its_numbers_of_rows_alone(module: NativeModule) -> None:
    zeros, counts = np.zeros(1, np.int64), np.zeros((4, 1), np.int64)
    ranges = [(1, 1), (2, 4), (5, 1 << 40), (1, 1 << 40)]
    entries = [
        Entry("count", (zeros.ctypes.data, row.ctypes.data), StepWord.N_TOKENS, 0, 1, min_rows=low, max_rows=high)
        for row, (low, high) in zip(counts, ranges, strict=True)
    ]
    pool = Pool(module, entries, 3, 64)
    for n_rows in (0, 1, 2, 4, 5, 1000):
        counts[:] = 0
        pool.step_block[StepWord.N_TOKENS] = n_rows
        pool.run(0, 4)
        assert counts[:, 0].tolist() == [int(low <= n_rows <= high) for low, high in ranges]
    pool.close()


def test_entries_without_a_barrier_all_end_before_the_step_does(module: NativeModule) -> None:
    zeros, counts = np.zeros(N_CHUNKS, np.int64), np.zeros((N_ENTRIES, N_CHUNKS), np.int64)
    entries = [
        Entry("count", (zeros.ctypes.data, row.ctypes.data), StepWord.N_TOKENS, 0, N_CHUNKS, barrier=False)
        for row in counts
    ]
    pool = Pool(module, entries, 3, 64)
    pool.step_block[StepWord.N_TOKENS] = 1
    for n_steps in range(1, 21):
        pool.run(0, N_ENTRIES)
        assert (counts == n_steps).all()
    pool.close()


def trace_dawdle() -> KernelIR:
    """to[chunk] = source[0] + source[1] + 1; chunk 1 takes its time, once as many threads are here as are wanted."""
    k, args, _, chunk = tape_kernel("dawdle")
    source, to, here = (argument_pointer(k, args, i, i64) for i in range(3))
    n_wanted = argument(k, args, 3)
    k.atomic_add(here, 1, Ordering.SEQUENTIAL)
    with k.while_(lambda: k.atomic_load(here, Ordering.ACQUIRE) < n_wanted):
        k.pause()
    with k.if_((n_wanted > 0) & chunk.eq(1)), k.loop(0, 50_000):
        k.pause()
    k.store(to + chunk, k.load(source) + k.load(source + 1) + 1)
    return k.finish()


@pytest.mark.parametrize("barrier", [True, False])
def test_threads_wait_for_the_one_that_dawdles(barrier: bool) -> None:
    """Both threads have a chunk of the first entry. The quick one must not begin the next entry before the other is
    done, and whoever is quick, the step must not end."""
    module = compile_kernels([trace_work(), trace_begin(), trace_dawdle()], host_target())
    cells, here = np.zeros((3, 2), np.int64), np.zeros((2, 8), np.int64)
    entries = [
        Entry(
            "dawdle",
            (cells[i].ctypes.data, cells[i + 1].ctypes.data, here[i].ctypes.data, 2 if i == 0 else 0),
            StepWord.N_TOKENS,
            0,
            2,
            barrier=barrier,
        )
        for i in range(2)
    ]
    pool = Pool(module, entries, 2, 64)
    pool.step_block[StepWord.N_TOKENS] = 1
    for _ in range(20):
        cells[:], here[:] = 0, 0
        pool.run(0, 2 if barrier else 1)
        assert cells[1].tolist() == [1, 1]
        assert cells[2].tolist() == ([3, 3] if barrier else [0, 0])
    pool.close()


def trace_scratch() -> KernelIR:
    """Writes the chunk's number all over the thread's scratch memory, then adds up what it holds."""
    k, args, _, chunk = tape_kernel("scratch")
    room = thread_scratch(k).cast(i64)
    with k.loop(0, N_SCRATCH_WORDS) as i:
        k.store(room + i, chunk)
    total = k.var(k.const(i64, 0))
    with k.loop(0, N_SCRATCH_WORDS) as i:
        total.set(total.get() + k.load(room + i))
    k.store(argument_pointer(k, args, 0, i64) + chunk, total.get())
    return k.finish()


def test_every_thread_has_scratch_memory_of_its_own() -> None:
    n_chunks = 400
    module = compile_kernels([trace_work(), trace_begin(), trace_scratch()], host_target())
    totals = np.zeros(n_chunks, np.int64)
    entry = Entry("scratch", (totals.ctypes.data,), StepWord.N_TOKENS, 0, n_chunks)
    pool = Pool(module, [entry], 4, scratch_bytes=8 * N_SCRATCH_WORDS)
    pool.step_block[StepWord.N_TOKENS] = 1
    pool.run(0, 1)
    assert (totals == N_SCRATCH_WORDS * np.arange(n_chunks)).all()
    assert all(room.ctypes.data % 64 == 0 for room in pool._scratch)
    pool.close()


def test_two_pools_at_once(module: NativeModule) -> None:
    pools = [make_pool(module, 2) for _ in range(2)]
    wrong: list[str] = []

    def work(pool: Pool, cells: np.ndarray) -> None:
        for _ in range(30):
            cells[:] = 0
            pool.run(0, N_ENTRIES)
            if not (cells == np.arange(N_ENTRIES + 1)[:, None]).all():
                wrong.append("a chunk ran twice, or too early")

    threads = [threading.Thread(target=work, args=pair) for pair in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for pool, _ in pools:
        pool.close()


def test_a_closed_pool_refuses_to_run(module: NativeModule) -> None:
    pool, _ = make_pool(module, 2)
    pool.close()
    with pytest.raises(ParameterError, match="closed"):
        pool.run(0, 1)


@linux_only
def test_an_interrupt_between_begin_and_walk_leaves_the_workers_in_step(module: NativeModule) -> None:
    """Ctrl-C may come at any time, also when the workers have begun and the caller has not."""
    pool, cells = make_pool(module, 3)
    real, n_calls = pool._condition.notify_all, 0

    def interrupted(*_: object) -> None:
        nonlocal n_calls
        n_calls += 1
        real()
        if n_calls == 2:
            raise KeyboardInterrupt

    pool._condition.notify_all = interrupted  # type: ignore[method-assign]
    for index in range(4):
        cells[:] = 0
        if index == 1:
            with pytest.raises(KeyboardInterrupt):
                pool.run(0, N_ENTRIES)
        else:
            pool.run(0, N_ENTRIES)
            assert (cells == np.arange(N_ENTRIES + 1)[:, None]).all()
    for worker in pool._workers:
        assert any(rests(worker.native_id or 0) for _ in range(40))
    pool.close()
