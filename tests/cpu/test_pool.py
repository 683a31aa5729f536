"""The threads: they end when they should, burn nothing when there is nothing to do, and pools don't disturb each
other."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from minfer.backends.cpu import os_threads
from minfer.backends.cpu.convention import Entry, StepWord, argument_pointer, tape_kernel
from minfer.backends.cpu.kernels.walker import trace_begin, trace_work
from minfer.backends.cpu.pool import SPIN_S, Pool
from minfer.simd import KernelIR, NativeModule, compile_kernels, host_target, i64

N_ENTRIES, N_CHUNKS = 20, 50


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads the CPU time of threads from /proc")
def test_nothing_is_burnt_once_a_step_is_long_over(module: NativeModule) -> None:
    pool, _ = make_pool(module, 2)
    (worker,) = pool._workers
    stat = Path(f"/proc/self/task/{worker.native_id}/schedstat")
    pool.run(0, N_ENTRIES)
    # It may spin for a moment after the step; then its time on a CPU stands still.
    time.sleep(max(0.05, 10 * SPIN_S))
    before = int(stat.read_text().split()[0])
    time.sleep(0.2)
    assert int(stat.read_text().split()[0]) - before < 1_000_000
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


def test_usable_cores_respect_affinity_and_control_groups(tmp_path: Path) -> None:
    assert 1 <= os_threads.n_usable_cores() <= (os.cpu_count() or 1)
    assert os_threads._control_group_limit(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert os_threads._control_group_limit(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert os_threads._control_group_limit(tmp_path) is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert os_threads._control_group_limit(tmp_path) == 0.5
