"""Opens GGUF files: metadata and tensor infos checked whole, weights mapped and left where they are."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ModelError, ParameterError, UnsupportedError
from minfer.gguf.mapping import MappedFile
from minfer.gguf.metadata import Metadata
from minfer.gguf.parts import merge_entries, read_parts
from minfer.gguf.scan import shown
from minfer.gguf.tensors import TensorInfo
from minfer.quants.ggml_types import GGMLType, row_bytes

_PLAIN_DTYPES: dict[GGMLType, np.dtype[np.generic]] = {
    GGMLType.F32: np.dtype("<f4"),
    GGMLType.F16: np.dtype("<f2"),
    GGMLType.F64: np.dtype("<f8"),
    GGMLType.I8: np.dtype("i1"),
    GGMLType.I16: np.dtype("<i2"),
    GGMLType.I32: np.dtype("<i4"),
    GGMLType.I64: np.dtype("<i8"),
}


@dataclass(frozen=True, eq=False)
class _Contents:
    """What goes when the file is closed: everything that keeps the mappings alive."""

    files: tuple[MappedFile, ...]
    metadata: Metadata


class GGUFFile:
    """An open GGUF model, in one file or in several. Made by `open_gguf`; usable in a `with` statement.

    Attributes:
        path: the path that was opened.
        paths: the paths of all parts, in order; just `path` for a model in one file.
        version: the version of the format (of the first part).
        alignment: what the offsets of the tensors' data are multiples of (in the first part).
        n_bytes: the size of all parts together.
        tensors: the tensors by name, in file order, part after part.

    Closing drops this object's hold on the mapped memory. Arrays and metadata taken from it stay valid: the memory is
    unmapped when the last of them goes. What maps a file trusts it: a file that is made shorter while it is open takes
    the process down when the missing bytes are touched (SIGBUS), so replace model files by renaming.
    """

    def __init__(self, path: Path) -> None:
        parts = read_parts(path)
        self.path = path
        self.paths = tuple(part.file.path for part in parts)
        self.version = parts[0].version
        self.alignment = parts[0].alignment
        self.n_bytes = sum(part.file.n_bytes for part in parts)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {tensor.name: tensor for part in parts for tensor in part.tensors}
        )
        self._contents: _Contents | None = _Contents(tuple(part.file for part in parts), Metadata(merge_entries(parts)))

    @property
    def metadata(self) -> Metadata:
        """The key-value pairs, in file order. Raises `ParameterError` when the file is closed."""
        return self._opened().metadata

    def tensor_info(self, name: str) -> TensorInfo:
        """What the file says about a tensor.

        Raises:
            ModelError: if there is no tensor of that name; the message has the nearest names.
        """
        if name not in self.tensors:
            near = difflib.get_close_matches(name, self.tensors, n=3)
            hint = f"; did you mean {' or '.join(map(shown, near))}?" if near else ""
            raise ModelError(f"{self.path} has no tensor {shown(name)} among its {len(self.tensors)}{hint}")
        return self.tensors[name]

    def tensor_data(self, name: str) -> NDArray[np.uint8]:
        """A tensor's packed bytes, uint8, shape (*leading dimensions, bytes of a row): a read-only view of the file.

        Raises:
            ModelError: if there is no tensor of that name.
            ParameterError: if the file is closed.
        """
        info = self.tensor_info(name)
        data = self._opened().files[info.part].array[info.offset : info.offset + info.n_bytes]
        return data.reshape(*info.shape[:-1], row_bytes(info.ggml_type, info.shape[-1]))

    def tensor(self, name: str) -> NDArray[Any]:
        """A tensor of a plain type (F16, F32, F64, I8 to I64) in its shape and dtype: a read-only view of the file.

        Raises:
            ModelError: if there is no tensor of that name.
            UnsupportedError: if its type is packed (BF16 too, for which NumPy has no dtype).
            ParameterError: if the file is closed.
        """
        info = self.tensor_info(name)
        dtype = _PLAIN_DTYPES.get(info.ggml_type)
        if dtype is None:
            raise UnsupportedError(
                f"a NumPy view of tensor {shown(name)}, of type {info.ggml_type.name},",
                [plain.name for plain in _PLAIN_DTYPES],
                "tensor_data() gives its packed bytes.",
            )
        return self.tensor_data(name).view(dtype)

    def release(self, name: str) -> None:
        """Tells the system that a tensor's pages can leave this process's memory. They stay readable.

        Raises:
            ModelError: if there is no tensor of that name.
            ParameterError: if the file is closed.
        """
        info = self.tensor_info(name)
        self._opened().files[info.part].release(info.offset, info.n_bytes)

    def close(self) -> None:
        """Lets go of the mapped memory (see above). Closing twice is fine."""
        self._contents = None

    def _opened(self) -> _Contents:
        if self._contents is None:
            raise ParameterError(f"{self.path} is closed")
        return self._contents

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {self.path} with {len(self.tensors)} tensors>"


def open_gguf(path: str | Path) -> GGUFFile:
    """Opens a GGUF file, version 2 or 3, and checks it whole; for one part of a split model, opens all of them.

    Metadata and tensor infos are read and checked against the size of the file before anything is allocated; the
    tensors' bytes are mapped, and neither read nor copied.

    Raises:
        ModelNotFoundError: if the file, or another part of it, is missing or can't be opened.
        GGUFError: if it is not a valid GGUF file; names the field and the offset.
        UnsupportedError: for another version of the format, a big-endian file, or an unknown tensor type.
    """
    return GGUFFile(Path(path))
