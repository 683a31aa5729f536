"""The CPU backend: which ops it supports, and how it is set up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from minfer.backends.base import CompileRequest
from minfer.backends.cpu.kernels.matmul_float import FLOAT_TYPES
from minfer.backends.cpu.os_threads import n_usable_cores
from minfer.backends.cpu.pack import packable_types
from minfer.backends.cpu.program import CpuProgram
from minfer.backends.cpu.vocabulary import NativeVocabularyOps
from minfer.backends.refusals import refusal_of_storage
from minfer.graph import TensorSpec, ops
from minfer.graph.ops import Op, WeightRole
from minfer.quants import GGMLType, dequantisable_types
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
WEIGHT_TYPES: Mapping[WeightRole, tuple[GGMLType, ...]] = MappingProxyType(
    {WeightRole.MATRIX: (*packable_types(), *FLOAT_TYPES), WeightRole.VECTOR: dequantisable_types()}
)
"""Types that weights may have."""
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
        reason = refusal_of_storage(op, inputs, WEIGHT_TYPES, KV_TYPES)
        if reason is not None:
            return reason
        if isinstance(op, ops.GatedMatMul) and inputs[1].ggml_type is not inputs[2].ggml_type:
            return f"gate and up differ in type: {inputs[1].ggml_type.name} and {inputs[2].ggml_type.name}"
        return None

    def compile(self, request: CompileRequest) -> CpuProgram:
        n_threads = request.n_threads or n_usable_cores()
        return CpuProgram(request, self.name, self._target, n_threads, self._kernel_cache)

    def vocabulary_ops(self) -> NativeVocabularyOps:
        return NativeVocabularyOps(self._target, self._kernel_cache)
