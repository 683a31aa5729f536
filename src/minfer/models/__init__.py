"""Models: from a file's metadata and tensor names to a declared graph. Nothing here knows a backend."""

from minfer.models.adapter import adapter_description
from minfer.models.architecture import Architecture
from minfer.models.config import ModelConfig
from minfer.models.declaration import Declaration, KVTypes
from minfer.models.registry import ARCHITECTURES, declare_graph, read_config

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Declaration",
    "KVTypes",
    "ModelConfig",
    "adapter_description",
    "declare_graph",
    "read_config",
]
