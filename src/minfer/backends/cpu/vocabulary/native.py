"""The passes over the vocabulary by native code; see `sampling/vocabulary.py` for the protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minfer import sampling, simd
from minfer.backends.cpu.vocabulary import kernels
from minfer.sampling.vocabulary import groups_for, in_order, nth_largest, refuse
from minfer.simd import KernelIR, NativeModule, Target, compile_kernels, digest_of_package, load_or_compile, open_cache

_LEAST = float(np.finfo(np.float32).min)


class NativeVocabularyOps:
    """The kernels of `kernels.py`, on the thread that calls. Any number of threads may call at a time.

    Args:
        target: what to compile for.
        kernel_cache: the directory of compiled kernels; None compiles anew.
    """

    def __init__(self, target: Target, kernel_cache: Path | None) -> None:
        module = _compile(target, kernel_cache)
        self._module = module  # the code lives as long as this
        self._arg_max = module["arg_max"].raw
        self._group_maxima = module["group_maxima"].raw
        self._collect = module["collect"].raw
        self._exp_sum = module["exp_sum"].raw

    def arg_max(self, logits: NDArray[np.float32]) -> int:
        out = np.empty(2, np.int64)
        address = out.ctypes.data
        self._arg_max(logits.ctypes.data, len(logits), address, address + 8)
        best, ok = out.tolist()
        if not ok or logits[best] == -np.inf:
            refuse(logits)
        return best

    def top_k(self, logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        n_vocab, source = len(logits), logits.ctypes.data
        per_group = max(1, n_vocab // groups_for(k))
        block = per_group * kernels.GROUPS_PER_BLOCK
        maxima = np.empty(-(-n_vocab // block) * kernels.GROUPS_PER_BLOCK, np.float32)
        out = np.empty(1, np.int64)
        self._group_maxima(source, n_vocab, block, maxima.ctypes.data, out.ctypes.data)
        if not out[0]:
            refuse(logits)
        ids = np.empty(n_vocab + 1, np.int32)
        threshold = max(nth_largest(maxima, k), _LEAST)  # no token that is banned reaches the least number
        self._collect(source, n_vocab, threshold, ids.ctypes.data, out.ctypes.data)
        return in_order(logits, ids[: out[0]], k)

    def exp_sum(self, logits: NDArray[np.float32], largest: float, scale: float = 1.0) -> float:
        total, ok = np.empty(1), np.empty(1, np.int64)
        self._exp_sum(logits.ctypes.data, len(logits), largest, scale, total.ctypes.data, ok.ctypes.data)
        if not ok[0]:
            refuse(logits)
        return float(total[0])


def _compile(target: Target, kernel_cache: Path | None) -> NativeModule:
    def trace() -> list[KernelIR]:
        return [
            kernels.trace_arg_max(),
            kernels.trace_group_maxima(),
            kernels.trace_collect(),
            kernels.trace_exp_sum(),
        ]

    if kernel_cache is None:
        return compile_kernels(trace(), target)
    # The exponentials are specified in the sampler's package.
    packages = (Path(__file__).parent, Path(simd.__file__).parent, Path(sampling.__file__).parent)
    return load_or_compile("vocabulary", trace, target, open_cache(kernel_cache, digest_of_package(*packages)))
