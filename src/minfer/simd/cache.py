"""Compiled objects on disk, so that a second start neither traces nor compiles.

An entry's name is a hash of all that decides its bytes: the sources of the kernels and of this package, the versions
of LLVM and llvmlite, the target with its CPU and features, and the caller's key for the module. Entries appear whole
(written under another name, then renamed) and carry a checksum, so that processes may share the directory and be
killed at any time. Loading an entry runs it: the directory must belong to the user, and nobody else may write to it.
Where nothing can be kept (a file system that is full or read-only, no home directory), that is told, and kernels are
compiled at every start.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from minfer.errors import MinferWarning
from minfer.simd import llvm
from minfer.simd.compile import NativeModule, compile_kernels, compile_to_object, load_object
from minfer.simd.errors import ObjectCacheError
from minfer.simd.ir import KernelIR
from minfer.simd.signature import Signature
from minfer.simd.targets import Target

_MAGIC = b"minfer kernels 1\n"
_DIGEST_BYTES = 32
_SUFFIX = ".kernels"
_TEMPORARY_SUFFIX = ".tmp"
# The least recently used entries beyond this go when a new one comes; one model's kernels are some ten entries.
_MAX_ENTRIES = 512
_ABANDONED_AFTER_S = 3600.0


@dataclass(frozen=True)
class ObjectCache:
    """The compiled objects in `directory`, made from the sources that `source_digest` stands for.

    Use `open_cache`, which checks the directory.
    """

    directory: Path
    source_digest: str

    def key(self, module_key: str, target: Target) -> str:
        """The name of an entry."""
        parts = (self.source_digest, *llvm.versions(), target.name, target.triple, target.cpu, target.features)
        text = "\0".join((*parts, module_key))
        return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def load(self, key: str) -> tuple[bytes, tuple[Signature, ...]] | None:
        """The object and the signatures of an entry; `None` where there is none that may be read, or a damaged one.

        Raises:
            ObjectCacheError: the entry belongs to another user, or is none, such as a link.
        """
        path = self._path(key)
        try:
            # Without following links: an entry is a file of this directory.
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        except (FileNotFoundError, PermissionError):  # what another user left in our directory can be replaced
            return None
        except OSError as error:
            raise ObjectCacheError(f"{path} can't be read: {error}; remove it") from error
        with os.fdopen(descriptor, "rb") as file:
            _check_private(path, os.fstat(descriptor))
            content = file.read()
        entry = _decode(key, content)
        if entry is not None:
            # Marks it as used; another process may have dropped it meanwhile.
            with suppress(OSError):
                os.utime(path)
        return entry

    def store(self, key: str, image: bytes, signatures: Iterable[Signature]) -> None:
        """Keeps an object. Whoever reads meanwhile sees the old entry, or none, or the new one: never a part.

        Raises:
            OSError: the directory can't be written to; then nothing is left in it.
        """
        path = self._path(key)
        descriptor, temporary = tempfile.mkstemp(suffix=_TEMPORARY_SUFFIX, prefix=f"{key}.", dir=self.directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_encode(key, image, signatures))
            _replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._drop_old()

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    def _drop_old(self) -> None:
        now = time.time()
        entries: list[tuple[float, Path]] = []
        for path in self.directory.iterdir():
            # Other processes drop entries too.
            with suppress(OSError):
                changed = path.stat().st_mtime
                if path.suffix == _SUFFIX:
                    entries.append((changed, path))
                elif path.suffix == _TEMPORARY_SUFFIX and now - changed > _ABANDONED_AFTER_S:
                    path.unlink()
        for _, path in sorted(entries, reverse=True)[_MAX_ENTRIES:]:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def open_cache(directory: Path, source_digest: str) -> ObjectCache | None:
    """The cache in a directory, which is made, private to the user, where there is none. None, with a warning, where it
    can't be made.

    Raises:
        ObjectCacheError: the directory belongs to another user, or others can write to it.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        _warn_unkept(directory, error)
        return None
    _check_private(directory, status)
    return ObjectCache(directory, source_digest)


def load_or_compile(
    module_key: str, build: Callable[[], Iterable[KernelIR]], target: Target, cache: ObjectCache | None
) -> NativeModule:
    """The module of that key: from the cache, or traced by `build`, compiled and kept. What can't be kept is told by a
    warning, and used all the same.

    `module_key` must name everything that `build` depends on besides the sources: sizes, types, names.

    Raises:
        CompileError: LLVM refuses the module.
        ObjectCacheError: the cache can't be trusted.
    """
    if cache is None:
        return compile_kernels(build(), target)
    key = cache.key(module_key, target)
    entry = cache.load(key)
    if entry is not None:
        return load_object(*entry, target, from_cache=True)
    image, signatures = compile_to_object(build(), target)
    try:
        cache.store(key, image, signatures)
    except OSError as error:
        _warn_unkept(cache.directory, error)
    return load_object(image, signatures, target, from_cache=False)


def digest_of_package(*directories: Path) -> str:
    """A digest of all Python sources under the directories, with their names."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for directory in directories:
        for path in sorted(directory.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(directory).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
        digest.update(b"\0")
    return digest.hexdigest()


def _warn_unkept(directory: Path, error: OSError) -> None:
    # The same words for every module, so that a process says it once.
    why = error.strerror or str(error)
    warnings.warn(
        f"compiled kernels can't be kept in {directory}: {why}; they are compiled again at every start "
        "(MINFER_CACHE_DIR names another directory)",
        MinferWarning,
        stacklevel=1,
    )


def _check_private(path: Path, status: os.stat_result) -> None:
    # Windows keeps other users out by the access list of the profile, which these numbers don't show.
    if os.name == "nt":
        return
    if status.st_uid != os.geteuid():
        raise ObjectCacheError(
            f"{path} belongs to user {status.st_uid}, and compiled kernels are run as user {os.geteuid()}: "
            "remove it, or name another cache directory by MINFER_CACHE_DIR"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ObjectCacheError(
            f"others can write to {path} (mode {stat.S_IMODE(status.st_mode):o}), and compiled kernels are run: "
            "remove it, so that it is made anew"
        )


def _replace(temporary: str, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except PermissionError:
        # Windows refuses while another process reads the same entry, which then is as good as ours.
        if not path.exists():
            raise
        Path(temporary).unlink(missing_ok=True)


def _encode(key: str, image: bytes, signatures: Iterable[Signature]) -> bytes:
    lines = [
        "\t".join((each.name, *(part for parameter in each.parameters for part in parameter))) for each in signatures
    ]
    head = "\n".join(lines).encode()
    body = len(head).to_bytes(4, "little") + head + image
    return _MAGIC + _checksum(key, body) + body


def _decode(key: str, content: bytes) -> tuple[bytes, tuple[Signature, ...]] | None:
    start = len(_MAGIC) + _DIGEST_BYTES
    body = content[start:]
    if content[:start] != _MAGIC + _checksum(key, body):
        return None
    head_end = 4 + int.from_bytes(body[:4], "little")
    signatures = []
    for line in body[4:head_end].decode().splitlines():
        name, *parts = line.split("\t")
        signatures.append(Signature(name, tuple(zip(parts[::2], parts[1::2], strict=True))))
    return body[head_end:], tuple(signatures)


def _checksum(key: str, body: bytes) -> bytes:
    # With the key, so that an entry renamed to another's name is damaged too.
    return hashlib.blake2b(key.encode() + body, digest_size=_DIGEST_BYTES).digest()
