"""The CPU backend: which ops it supports, and how it is set up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minfer.backends.base import CompileRequest
from minfer.backends.cpu.kernels.matmul_float import FLOAT_TYPES
from minfer.backends.cpu.os_threads import n_usable_cores
from minfer.backends.cpu.pack import packable_types
from minfer.backends.cpu.program import CpuProgram
from minfer.backends.cpu.vocabulary import NativeVocabularyOps
from minfer.graph import Symbol, TensorSpec, ops
from minfer.graph.ops import Op
from minfer.quants import GGMLType
from minfer.simd import Target, host_target, target_named

SUPPORTED_OPS: tuple[type[Op], ...] = (
    ops.Embedding,
    ops.MatMul,
    ops.MatMulGroup,
    ops.GatedMatMul,
    ops.RMSNorm,
    ops.AddRMSNorm,
    ops.Add,
    ops.Multiply,
    ops.Activation,
    ops.GatedActivation,
    ops.Reshape,
    ops.Rope,
    ops.KVStore,
    ops.Attention,
    ops.SelectRows,
)
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
        if type(op) not in SUPPORTED_OPS:
            return f"there is no kernel for {op.kind}"
        matrices = (*packable_types(), *FLOAT_TYPES)
        for spec in inputs:
            symbols = spec.symbols()
            if Symbol.N_CELLS in symbols and spec.ggml_type not in KV_TYPES:
                return f"a KV region can't be {spec.ggml_type.name}"
            if not symbols and len(spec.shape) == 2 and spec.ggml_type not in matrices:
                return f"a weight can't be {spec.ggml_type.name}"
        if isinstance(op, ops.GatedMatMul) and inputs[1].ggml_type is not inputs[2].ggml_type:
            return f"gate and up differ in type: {inputs[1].ggml_type.name} and {inputs[2].ggml_type.name}"
        return None

    def compile(self, request: CompileRequest) -> CpuProgram:
        n_threads = request.n_threads or n_usable_cores()
        return CpuProgram(request, self.name, self._target, n_threads, self._kernel_cache)

    def vocabulary_ops(self) -> NativeVocabularyOps:
        return NativeVocabularyOps(self._target, self._kernel_cache)
