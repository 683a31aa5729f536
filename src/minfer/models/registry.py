"""The architectures by name. A new one is a short file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from minfer.errors import ModelError, UnsupportedError
from minfer.gguf import GGUFFile
from minfer.graph import Graph, verify
from minfer.models.adapter import refuse_adapter
from minfer.models.architecture import Architecture
from minfer.models.config import ModelConfig
from minfer.models.declaration import Declaration, KVTypes
from minfer.models.keys import Keys
from minfer.models.llama import LLAMA
from minfer.models.qwen2 import QWEN2
from minfer.models.qwen3 import QWEN3

ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {architecture.name: architecture for architecture in (LLAMA, QWEN2, QWEN3)}
)


def read_config(
    file: GGUFFile, architectures: Mapping[str, Architecture] = ARCHITECTURES
) -> tuple[ModelConfig, tuple[str, ...]]:
    """Reads what the model in a file is.

    Args:
        file: the model.
        architectures: those to choose from, by the name that files give them.

    Returns:
        the configuration, and the metadata keys that it was read from.

    Raises:
        UnsupportedError: an architecture that is not among them, or a model that asks for more than is built for it.
        ModelError: a key is missing or of the wrong type, the numbers can't belong together, or the file is an adapter.
    """
    refuse_adapter(file)
    name = file.metadata.get_str("general.architecture")
    if name not in architectures:
        raise UnsupportedError(f"architecture {name!r}", architectures)
    if "token_embd.weight" not in file.tensors:
        raise ModelError("the file has no tensor token_embd.weight: it holds no model, or only a vocabulary")
    keys = Keys(file, name)
    config = architectures[name].read(keys)
    keys.refuse_unread()
    return config, keys.read()


def declare_graph(
    file: GGUFFile, kv_types: KVTypes | None = None, architectures: Mapping[str, Architecture] = ARCHITECTURES
) -> tuple[ModelConfig, Graph]:
    """Reads what the model in a file is, and declares its graph.

    Args:
        file: the model.
        kv_types: the types of the KV cache; None is the default.
        architectures: those to choose from, by the name that files give them.

    Raises:
        UnsupportedError: an architecture that is not among them, or a model that asks for more than is built for it.
        ModelError: the file does not fit together, or is an adapter.
    """
    config, _ = read_config(file, architectures)
    graph = architectures[config.architecture].declare(Declaration(file, config, kv_types or KVTypes()))
    verify(graph)
    return config, graph
