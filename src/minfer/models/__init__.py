"""Models: from a file's metadata and tensor names to a declared graph. Nothing here knows a backend."""

from minfer.models.adapter import adapter_description
from minfer.models.declaration import Architecture, Declaration, KVTypes
from minfer.models.hparams import HParams
from minfer.models.registry import ARCHITECTURES, declare_graph

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Declaration",
    "HParams",
    "KVTypes",
    "adapter_description",
    "declare_graph",
]
