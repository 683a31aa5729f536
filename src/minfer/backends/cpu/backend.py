"""The CPU backend: which ops it supports, and how it is set up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minfer.backends.base import CompileRequest
from minfer.backends.cpu.ops import OPS
from minfer.backends.cpu.os_threads import n_usable_cores
from minfer.backends.cpu.panels.weights import WEIGHT_TYPES
from minfer.backends.cpu.program import CpuProgram
from minfer.backends.cpu.vocabulary import NativeVocabularyOps
from minfer.backends.refusals import refusal_of_storage
from minfer.graph import TensorSpec
from minfer.graph.ops import Op
from minfer.quants import GGMLType
from minfer.simd import Target, host_target, target_named

KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)
"""Types of a KV region."""


class CpuBackend:
    """See `backends/base.py` for the protocol.

    Args:
        isa: the instruction set to use instead of the best that this CPU has (`minfer.simd.host_target_names`).
        kernel_cache: the directory of compiled kernels; None compiles anew.
    """

    def __init__(self, isa: str | None = None, kernel_cache: Path | None = None) -> None:
        self._target: Target = host_target() if isa is None else target_named(isa)
        self._kernel_cache = kernel_cache

    @property
    def name(self) -> str:
        return "cpu"

    def refusal(self, op: Op, inputs: Sequence[TensorSpec]) -> str | None:
        if type(op) not in OPS:
            return f"there is no kernel for {op.kind}"
        return refusal_of_storage(op, inputs, WEIGHT_TYPES, KV_TYPES) or OPS[type(op)].refusal(inputs)

    def compile(self, request: CompileRequest) -> CpuProgram:
        n_threads = request.n_threads or n_usable_cores()
        return CpuProgram(request, self.name, self._target, n_threads, self._kernel_cache)

    def vocabulary_ops(self) -> NativeVocabularyOps:
        return NativeVocabularyOps(self._target, self._kernel_cache)
