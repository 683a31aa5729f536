"""Files mapped into memory, read-only: the one place where operating systems differ.

A mapping lives as long as the last view of it. Nothing here closes it by force, since memory that a NumPy array still
points to must not go away; dropping the `MappedFile` and every view is what unmaps the file.
"""

from __future__ import annotations

import mmap
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minfer.errors import GGUFError, ModelNotFoundError


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file's bytes: `array` (uint8, read-only) and `view` are the same memory."""

    path: Path
    array: NDArray[np.uint8]
    view: memoryview
    _map: mmap.mmap

    @property
    def n_bytes(self) -> int:
        return len(self.view)

    def release(self, offset: int, n_bytes: int) -> None:
        """Tells the system that these bytes won't be needed soon, so that the process need not keep their pages.

        They stay readable: touching them again fetches them again. Pages that are only partly in the range go too,
        which costs their other user one more fetch. Does nothing where Python offers no `madvise` (Windows).
        """
        if sys.platform != "win32":
            start = offset - offset % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, offset + n_bytes - start)


def map_file(path: Path) -> MappedFile:
    """Maps a whole file.

    Raises:
        ModelNotFoundError: if it is missing, can't be opened, or is no regular file.
        GGUFError: if it is empty.
    """
    try:
        # Looked at before it is opened, since opening a pipe waits for its writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ModelNotFoundError(str(path), [f"{path}: a directory"], "Give the path of a .gguf file in it.")
        if not stat.S_ISREG(mode):
            raise ModelNotFoundError(str(path), [f"{path}: not a regular file, so it can't be mapped"])
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise GGUFError("the file is empty", field="file", path=str(path))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ModelNotFoundError(str(path), [f"{path}: {reason}"]) from error
    return MappedFile(path, np.frombuffer(mapped, np.uint8), memoryview(mapped), mapped)
