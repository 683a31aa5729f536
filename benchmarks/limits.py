"""What this machine can do at best: reading memory, and `dot4` on registers, each on a number of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from minfer.backends.arena import aligned_zeros
from minfer.simd import Kernel, NativeKernel, compile_kernels, f32, host_target, i8, i32, i64, ptr, u8, vec

_READ_BYTES = 1 << 30
_DOTS = 20_000_000
_CHAINS = 12


def _in_threads(n_threads: int, work: Callable[[int], None]) -> float:
    """Seconds until all threads are done."""
    threads = [threading.Thread(target=work, args=(index,)) for index in range(n_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


@cache
def _reader() -> NativeKernel:
    k = Kernel("read", source=ptr(i32), n=i64, out=ptr(i32))
    source, n, out = k.args
    sums = [k.var(k.const(vec(i32, 16), 0)) for _ in range(4)]
    with k.loop(0, n, 64) as i:
        for part, total in enumerate(sums):
            total.set(total.get() + k.load(source + i + 16 * part, 16))
            k.prefetch(source + i + 16 * part + 1024)
    for part, total in enumerate(sums):
        k.store(out + 16 * part, total.get())
    return compile_kernels([k.finish()], host_target())["read"]


@cache
def _memory() -> np.ndarray:
    memory = aligned_zeros(_READ_BYTES)
    memory[:] = 1
    return memory


def read_bandwidth(n_threads: int) -> float:
    """GB/s of reading a gigabyte once."""
    memory, kernel = _memory(), _reader()
    share = _READ_BYTES // n_threads // 256 * 256
    outs = [np.zeros(64, np.int32) for _ in range(n_threads)]

    def work(index: int) -> None:
        kernel.raw(memory.ctypes.data + index * share, share // 4, outs[index].ctypes.data)

    return share * n_threads / _in_threads(n_threads, work) / 1e9


@cache
def _dotter() -> NativeKernel:
    k = Kernel("dots", n=i64, data=ptr(u8), out=ptr(f32))
    n, data, out = k.args
    u = k.load(data, 64)
    s = k.load(data + 64, 64).bitcast(vec(i8, 64))
    sums = [k.var(k.const(vec(i32, 16), 0)) for _ in range(_CHAINS)]
    with k.loop(0, n):
        for total in sums:
            total.set(k.dot4(total.get(), u, s))
    for index, total in enumerate(sums):
        k.store(out + 16 * index, total.get().to(f32))
    return compile_kernels([k.finish()], host_target())["dots"]


def dot4_rate(n_threads: int) -> float:
    """Billions of multiplications and additions of bytes a second, from registers."""
    kernel, data = _dotter(), np.ones(128, np.uint8)
    outs = [np.zeros(16 * _CHAINS, np.float32) for _ in range(n_threads)]

    def work(index: int) -> None:
        kernel.raw(_DOTS, data.ctypes.data, outs[index].ctypes.data)

    return 64 * _CHAINS * _DOTS * n_threads / _in_threads(n_threads, work) / 1e9
