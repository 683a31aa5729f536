"""GGUF files: read (mapped, lazily, and checked before anything is believed) and written.

    with open_gguf("model.gguf") as file:
        n_layers = file.metadata.get_int("llama.block_count")
        packed = file.tensor_data("blk.0.attn_q.weight")  # uint8, (n_rows, bytes of a row), in the mapped file

`values` has the types of metadata values, `scan` walks the bytes and checks them, `arrays` and `metadata` decode what
was walked over, `tensors` checks the tensor infos, `parts` puts split files together, `mapping` is what differs between
operating systems, `reader` joins them; `encode` and `writer` go the other way.
"""

from __future__ import annotations

from minfer.gguf.arrays import GGUFArray
from minfer.gguf.metadata import MISSING, Metadata, MetadataValue
from minfer.gguf.reader import GGUFFile, open_gguf
from minfer.gguf.tensors import TensorInfo
from minfer.gguf.values import EncodedValue, GGUFValueType, TypedValue, ValueKind
from minfer.gguf.writer import PackedData, TensorSource, write_gguf

__all__ = [
    "MISSING",
    "EncodedValue",
    "GGUFArray",
    "GGUFFile",
    "GGUFValueType",
    "Metadata",
    "MetadataValue",
    "PackedData",
    "TensorInfo",
    "TensorSource",
    "TypedValue",
    "ValueKind",
    "open_gguf",
    "write_gguf",
]
