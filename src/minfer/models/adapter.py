"""Files that hold changes to a model, and no model.

Keys and tensor names: llama.cpp's `convert_lora_to_gguf.py`.
"""

from __future__ import annotations

from minfer.errors import ModelError
from minfer.gguf import GGUFFile

_LORA_A = ".lora_a"


def adapter_description(file: GGUFFile) -> str | None:
    """What an adapter's file is, such as `a LoRA adapter for llama models, rank 16`; None for a model's."""
    metadata = file.metadata
    if metadata.get("general.type") != "adapter" and "adapter.type" not in metadata:
        return None
    kind = metadata.get("adapter.type")
    named = "LoRA adapter" if kind == "lora" else "adapter" if kind is None else f"{kind} adapter"
    architecture = metadata.get("general.architecture")
    target = f" for {architecture} models" if isinstance(architecture, str) else ""
    ranks = sorted({info.shape[0] for name, info in file.tensors.items() if name.endswith(_LORA_A)})
    rank = f", rank {' to '.join(map(str, dict.fromkeys((ranks[0], ranks[-1]))))}" if ranks else ""
    return f"a {named}{target}{rank}"


def refuse_adapter(file: GGUFFile) -> None:
    """Raises:
    ModelError: the file is an adapter.
    """
    described = adapter_description(file)
    if described is not None:
        raise ModelError(
            f"{file.paths[0]} is {described}: it changes a model, and is none by itself; "
            "give the file of a model, such as this one merged into the model that it was made for"
        )
