"""Which model it is that a saved session belongs to.

The fingerprint is made of all metadata (hyper-parameters, tokenizer, template), the name, type and shape of every
tensor, and some bytes of each. Hashing whole files would take seconds to minutes; two models that share metadata and
shapes, say two fine-tunes of one, differ almost everywhere in almost every tensor, so that windows of each tell them
apart. It recognises a model; it is no defence against somebody who changes a file and means to go unnoticed.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

from minfer.gguf import GGUFFile

_N_WINDOWS: Final = 4
_WINDOW_BYTES: Final = 64


class ModelIdentity:
    """A model's fingerprint, computed when it is first asked for, and what computes it.

    Args:
        file: the model's file, open.
        numerics: names everything that the bits of keys and values depend on besides model, tokens and cache type.
    """

    def __init__(self, file: GGUFFile, numerics: str) -> None:
        self.numerics = numerics
        self._file = file

    @property
    def name(self) -> str:
        """For people."""
        return self._file.metadata.get_str("general.name", self._file.path.name)

    @cached_property
    def fingerprint(self) -> str:
        """16 bytes in hexadecimal."""
        digest = hashlib.blake2b(digest_size=16)

        def add(part: bytes | memoryview) -> None:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)

        metadata = self._file.metadata
        for key in sorted(metadata):
            encoded = metadata.encoded(key)
            add(f"{key}\0{encoded.value_type.name}".encode())
            add(encoded.data)
        for name in sorted(self._file.tensors):
            info = self._file.tensor_info(name)
            add(f"{name}\0{info.ggml_type.name}\0{info.shape}".encode())
            data = self._file.tensor_data(name).reshape(-1)
            for i in range(_N_WINDOWS):
                start = max(0, info.n_bytes - _WINDOW_BYTES) * i // (_N_WINDOWS - 1)
                add(data[start : start + _WINDOW_BYTES].tobytes())
            self._file.release(name)
        return digest.hexdigest()
