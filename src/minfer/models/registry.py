"""The architectures by name. A new one is a short file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from minfer.errors import UnsupportedError
from minfer.gguf import GGUFFile
from minfer.graph import Graph, verify
from minfer.models.adapter import refuse_adapter
from minfer.models.declaration import Architecture, Declaration, KVTypes
from minfer.models.hparams import HParams, read_hparams
from minfer.models.llama import LLAMA
from minfer.models.qwen2 import QWEN2
from minfer.models.qwen3 import QWEN3

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {architecture.name: architecture for architecture in (LLAMA, QWEN2, QWEN3)}
)


def declare_graph(
    file: GGUFFile, kv_types: KVTypes | None = None, architectures: Mapping[str, Architecture] = ARCHITECTURES
) -> tuple[HParams, Graph]:
    """Declares the graph of the model in a file.

    Args:
        file: the model.
        kv_types: the types of the KV cache; None is the default.
        architectures: those to choose from, by the name that files give them.

    Raises:
        UnsupportedError: an architecture that is not among them, or a model that asks for more than is built for it.
        ModelError: the file does not fit together, or is an adapter.
    """
    refuse_adapter(file)
    name = file.metadata.get_str("general.architecture")
    if name not in architectures:
        raise UnsupportedError(f"architecture {name!r}", architectures)
    architecture = architectures[name]
    hparams = read_hparams(file, name)
    declaration = Declaration(file, hparams, kv_types or KVTypes())
    graph = architecture.declare(declaration, architecture.rope_style)
    verify(graph)
    return hparams, graph
