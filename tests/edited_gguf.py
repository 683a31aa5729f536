"""Variations of a model file: other metadata, other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from minfer.gguf import TensorSource, open_gguf, write_gguf
from minfer.quants import GGMLType, quantise


def edited(
    source: Path,
    target: Path,
    metadata: Mapping[str, object] | None = None,
    tensors: Mapping[str, tuple[tuple[int, ...], GGMLType] | None] | None = None,
) -> Path:
    """Writes a copy of `source` to `target` and returns it.

    Args:
        source: the model.
        target: the file to write.
        metadata: keys to set, with values as `write_gguf` takes them; None leaves a key out.
        tensors: tensors to add or replace, with their shape and type, all ones; None leaves a tensor out.
    """
    with open_gguf(source) as file:
        values: dict[str, object] = {key: file.metadata.encoded(key) for key in file.metadata}
        values.update(metadata or {})
        kept: dict[str, TensorSource] = {
            name: (name, info.shape, info.ggml_type, file.tensor_data(name)) for name, info in file.tensors.items()
        }
        for name, made in (tensors or {}).items():
            kept.pop(name, None)
            if made is not None:
                shape, ggml_type = made
                kept[name] = (name, shape, ggml_type, _ones(shape, ggml_type))
        write_gguf(target, {key: value for key, value in values.items() if value is not None}, kept.values())
    return target


def _ones(shape: tuple[int, ...], ggml_type: GGMLType) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    if ggml_type is GGMLType.I32:
        return np.ones(shape, np.int32).view(np.uint8)
    return quantise(ggml_type, np.ones(shape, np.float32))
