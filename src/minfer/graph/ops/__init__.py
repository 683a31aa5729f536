"""The whole vocabulary of a compute graph: one frozen dataclass an op, in one file a family.

What an op *computes* is defined by its file in `backends/reference/`.
"""

from minfer.graph.ops.attention import Attention, KVStore, Rope, RopeStyle
from minfer.graph.ops.base import Op, Roles, Specs, WeightRole, roles
from minfer.graph.ops.elementwise import Activation, ActivationKind, Add, GatedActivation, Multiply, Softcap
from minfer.graph.ops.linear import Embedding, GatedMatMul, MatMul, MatMulGroup
from minfer.graph.ops.movement import Copy, Reshape, SelectRows
from minfer.graph.ops.norm import AddRMSNorm, LayerNorm, RMSNorm

OPS: tuple[type[Op], ...] = (
    Embedding, MatMul, MatMulGroup, GatedMatMul, RMSNorm, AddRMSNorm, Add, Multiply, Activation, GatedActivation,
    LayerNorm, Softcap, Reshape, Rope, KVStore, Attention, SelectRows, Copy,
)  # fmt: skip
"""Every op."""

__all__ = [
    "OPS",
    "Activation",
    "ActivationKind",
    "Add",
    "AddRMSNorm",
    "Attention",
    "Copy",
    "Embedding",
    "GatedActivation",
    "GatedMatMul",
    "KVStore",
    "LayerNorm",
    "MatMul",
    "MatMulGroup",
    "Multiply",
    "Op",
    "RMSNorm",
    "Reshape",
    "Roles",
    "Rope",
    "RopeStyle",
    "SelectRows",
    "Softcap",
    "Specs",
    "WeightRole",
    "roles",
]
