"""Which function defines which op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from minfer.backends.reference.activation import activation, gated_activation
from minfer.backends.reference.attention import attention
from minfer.backends.reference.elementwise import add, multiply
from minfer.backends.reference.embedding import embedding
from minfer.backends.reference.kv_store import kv_store
from minfer.backends.reference.matmul import gated_matmul, matmul, matmul_group
from minfer.backends.reference.reshape import reshape
from minfer.backends.reference.rms_norm import add_rms_norm, rms_norm
from minfer.backends.reference.rope import rope
from minfer.backends.reference.select_rows import select_rows
from minfer.graph import ops

KERNELS: Final[Mapping[type[ops.Op], Callable[..., Any]]] = MappingProxyType(
    {
        ops.Embedding: embedding,
        ops.MatMul: matmul,
        ops.MatMulGroup: matmul_group,
        ops.GatedMatMul: gated_matmul,
        ops.RMSNorm: rms_norm,
        ops.AddRMSNorm: add_rms_norm,
        ops.Add: add,
        ops.Multiply: multiply,
        ops.Activation: activation,
        ops.GatedActivation: gated_activation,
        ops.Reshape: reshape,
        ops.Rope: rope,
        ops.KVStore: kv_store,
        ops.Attention: attention,
        ops.SelectRows: select_rows,
    }
)
"""A kernel is called with the op and its operands (arrays, `Weight`s, `Region`s) and returns its outputs as new
arrays."""
