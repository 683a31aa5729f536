"""Atomic accesses: their results, and that threads see them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from minfer.simd import Kernel, KernelIR, NativeModule, Ordering, Scalar, compile_kernels, host_target, i32, i64, ptr
from simd_runs import Everywhere

TYPES = (i32, i64)
DTYPES = {"i32": np.int32, "i64": np.int64}


def each_operation(of: Scalar, ordering: Ordering) -> KernelIR:
    k = Kernel(f"each_{of}_{ordering.name}", x=ptr(of), out=ptr(of))
    x, out = k.args
    is_load = ordering in (Ordering.RELAXED, Ordering.ACQUIRE, Ordering.SEQUENTIAL)
    is_store = ordering in (Ordering.RELAXED, Ordering.RELEASE, Ordering.SEQUENTIAL)
    k.store(out, k.atomic_add(x, 5, ordering))
    k.store(out + 1, k.atomic_exchange(x, 100, ordering))
    old, swapped = k.atomic_compare_exchange(x, 100, 7, ordering)
    k.store(out + 2, old)
    k.store(out + 3, swapped.to(of))
    old, swapped = k.atomic_compare_exchange(x, 100, 8, ordering)
    k.store(out + 4, old)
    k.store(out + 5, swapped.to(of))
    k.store(out + 6, k.atomic_load(x, ordering if is_load else Ordering.SEQUENTIAL))
    k.atomic_store(x + 1, 9, ordering if is_store else Ordering.SEQUENTIAL)
    k.pause()
    return k.finish()


@pytest.fixture(scope="module")
def everywhere() -> Everywhere:
    return Everywhere([each_operation(of, ordering) for of in TYPES for ordering in Ordering])


@pytest.mark.parametrize("ordering", Ordering)
@pytest.mark.parametrize("of", TYPES, ids=str)
def test_results_of_atomic_operations(everywhere: Everywhere, of: Scalar, ordering: Ordering) -> None:
    dtype = DTYPES[of.name]
    name = f"each_{of}_{ordering.name}"
    x, out = everywhere.run(name, lambda: [np.array([1, 2], dtype), np.zeros(7, dtype)])
    assert out.tolist() == [1, 6, 100, 1, 7, 0, 7]
    assert x.tolist() == [7, 9]


def chunk_takers() -> KernelIR:
    """Threads take the next chunk from a counter until none is left, and mark it."""
    k = Kernel("take_chunks", counter=ptr(i64), marks=ptr(i32), n=i64)
    counter, marks, n = k.args
    chunk = k.var(k.atomic_add(counter, 1, Ordering.RELAXED))
    with k.while_(lambda: chunk.get() < n):
        mark = marks + chunk.get()
        k.store(mark, k.load(mark) + 1)
        chunk.set(k.atomic_add(counter, 1, Ordering.RELAXED))
    return k.finish()


def barrier() -> KernelIR:
    """Rounds in which each of two threads writes a number of its own and, after a barrier, reads the other's."""
    k = Kernel("barrier", arrived=ptr(i64), slots=ptr(i64), errors=ptr(i64), me=i64, n_rounds=i64)
    arrived, slots, errors, me, n_rounds = k.args

    def wait(for_count):
        k.atomic_add(arrived, 1, Ordering.RELEASE)
        with k.while_(lambda: k.atomic_load(arrived, Ordering.ACQUIRE) < for_count):
            k.pause()

    with k.loop(1, n_rounds + 1) as number:
        k.store(slots + me, number)
        wait(number * 4 - 2)
        with k.if_(k.load(slots + (1 - me)).ne(number)):
            k.atomic_add(errors, 1)
        wait(number * 4)
    return k.finish()


@pytest.fixture(scope="module")
def threaded() -> NativeModule:
    return compile_kernels([chunk_takers(), barrier()], host_target())


def run_threads(function, arguments) -> None:
    threads = [threading.Thread(target=function, args=each, daemon=True) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Far longer than it takes: a deadlock fails the test instead of hanging it.
        thread.join(60)
        assert not thread.is_alive()


def test_threads_share_out_chunks_without_losing_or_doubling_any(threaded: NativeModule) -> None:
    n = 20_000
    counter, marks = np.zeros(1, np.int64), np.zeros(n, np.int32)
    run_threads(threaded["take_chunks"], [(counter, marks, n)] * 3)
    assert (marks == 1).all()
    assert counter[0] == n + 3


def test_what_is_written_before_a_barrier_is_seen_after_it(threaded: NativeModule) -> None:
    # Both threads spin in compiled code at the same time: were the GIL held, this would never end.
    arrived, slots, errors = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)
    run_threads(threaded["barrier"], [(arrived, slots, errors, me, 50) for me in range(2)])
    assert errors[0] == 0
    assert slots.tolist() == [50, 50]
    assert arrived[0] == 50 * 4
