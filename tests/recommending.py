"""A copy of a model's file that recommends a sampling, written by the `gguf` package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def recommending(source: Path, target: Path, *, temperature: float, **others: float) -> Path:
    """Writes `source` anew, with a temperature, and other fields by the names that the package's writer has."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, *element = field.types
            writer.add_key_value(field.name, field.contents(), kind, element[0] if element else None)
    writer.add_sampling_temp(temperature)
    for name, value in others.items():
        getattr(writer, f"add_sampling_{name}")(value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
