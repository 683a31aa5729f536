"""Which function defines which op: the tables of all modules that define some."""

from __future__ import annotations

from types import MappingProxyType

from minfer.backends.reference import (
    activation,
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
from minfer.backends.reference.operands import Kernels

_MODULES = (
    activation,
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

KERNELS: Kernels = MappingProxyType({op: kernel for module in _MODULES for op, kernel in module.KERNELS.items()})
"""Every op but those that the plan runs itself."""
