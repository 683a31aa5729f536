"""The reference backend: NumPy, slow and obvious. Its kernels are the definition of the ops."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.backends.base import CompileRequest
from minfer.backends.reference.kernels import KERNELS
from minfer.backends.reference.program import ReferenceProgram
from minfer.backends.refusals import refusal_of_storage
from minfer.graph import TensorSpec
from minfer.graph.ops import Op, WeightRole
from minfer.quants import GGMLType, dequantisable_types
from minfer.sampling import NumpyVocabularyOps

KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)
"""Types of a KV region."""


class ReferenceBackend:
    """See `backends/base.py` for the protocol. `weight_cache_bytes` bounds the dequantised weights that are kept.

    It computes on one thread, whatever number a request names: that is what makes its sums the same bits everywhere.
    """

    def __init__(self, weight_cache_bytes: int = 4 << 30) -> None:
        self._weight_cache_bytes = weight_cache_bytes

    @property
    def name(self) -> str:
        return "reference"

    def refusal(self, op: Op, inputs: Sequence[TensorSpec]) -> str | None:
        if type(op) not in KERNELS:
            return f"there is no kernel for {op.kind}"
        return refusal_of_storage(op, inputs, dict.fromkeys(WeightRole, dequantisable_types()), KV_TYPES)

    def compile(self, request: CompileRequest) -> ReferenceProgram:
        return ReferenceProgram(request, self.name, self._weight_cache_bytes)

    def vocabulary_ops(self) -> NumpyVocabularyOps:
        return NumpyVocabularyOps()
