"""Files that are written whole or not at all, and that carry digests of what comes before."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from minfer.errors import ForeignFileError, SessionFileError

DIGEST_BYTES: Final = 32


class HashedWriter:
    """Writes a file from its start on, and knows the BLAKE2b digest of all that went through."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._file.write(data)

    def write_digest(self) -> None:
        """Writes the digest of all bytes so far."""
        self.write(self._hash.digest())


class HashedReader:
    """Reads a file from its start on, and knows the digest of all that went through."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def read(self, n_bytes: int) -> bytes:
        """The next bytes; fewer where the file ends."""
        data = self._file.read(n_bytes)
        self._hash.update(data)
        return data

    def read_into(self, target: memoryview) -> None:
        """Fills `target` with the next bytes, or as much of it as the file has."""
        n_read = self._file.readinto(target)
        self._hash.update(target[:n_read])

    def check_digest(self) -> bool:
        """Reads a digest: whether it is that of all bytes so far."""
        wanted = self._hash.digest()
        return self.read(DIGEST_BYTES) == wanted


@contextmanager
def replacing(path: Path, magic: bytes, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` at the end, once it is on the disk, if all went well. Until then what
    was there stays. Where `path` is a symbolic link, the file that it points to is replaced.

    A new file can be read by its owner only; one that replaces another keeps the other's permissions.

    Args:
        path: where to.
        magic: the bytes with which a file begins that may be replaced.
        overwrite: whether any other file may be replaced, too.

    Raises:
        ForeignFileError: a file of another kind is there.
        SessionFileError: it can't be written there; or what is there is no file: a directory, a device, a pipe.
    """
    given = path
    try:
        path = Path(os.path.realpath(path))
        mode = _replaceable(given, path, magic, overwrite)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "wb") as file:
                if mode is not None:
                    os.chmod(name, mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        _sync_directory(path.parent)
    except OSError as error:
        raise SessionFileError(given, f"it can't be written: {error.strerror or error}") from error


def _replaceable(given: Path, path: Path, magic: bytes, overwrite: bool) -> int | None:
    """The permissions of the file that is there, or None if there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
        raise SessionFileError(given, f"it can't be written: {kind} stands there")
    if not overwrite:
        with path.open("rb") as file:
            begin = file.read(len(magic))
        if begin not in (b"", magic):
            raise ForeignFileError(given)
    return stat.S_IMODE(mode)


def _sync_directory(path: Path) -> None:
    """So that after a power cut, too, the name stands for the new file. Windows has no such call."""
    if os.name == "posix":
        directory = os.open(path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
