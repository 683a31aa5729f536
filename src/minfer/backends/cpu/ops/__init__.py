"""The ops of this backend: one file (or folder) an op, with what traces its kernels and what makes its entries."""

from collections.abc import Mapping
from types import MappingProxyType

from minfer.backends.cpu.emission import CpuGroup, CpuOp
from minfer.backends.cpu.ops import (
    attention,
    elementwise,
    embedding,
    kv_store,
    layer_norm,
    matmul,
    reshape,
    rms_norm,
    rope,
    rope_store,
    select_rows,
    softcap,
)
from minfer.graph.ops import Op

_MODULES = (
    attention,
    elementwise,
    embedding,
    kv_store,
    layer_norm,
    matmul,
    reshape,
    rms_norm,
    rope,
    select_rows,
    softcap,
)

OPS: Mapping[type[Op], CpuOp] = MappingProxyType({each.op: each for module in _MODULES for each in module.OPS})
"""Every op that this backend runs."""

GROUPS: tuple[CpuGroup, ...] = rope_store.GROUPS
"""What runs as one where it comes in a row."""
