"""Models from the Hugging Face Hub, by names such as `hf:owner/repo:file.gguf`. The transfer is huggingface_hub's."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer.errors import DownloadError, ParameterError
from minfer.hub.paths import GGUF_SUFFIX, HUGGING_FACE_PREFIX, repository_dir, unstored
from minfer.hub.progress import Progress

HUGGING_FACE_SYNTAX = f"{HUGGING_FACE_PREFIX}owner/repo:file{GGUF_SUFFIX}"

# Of the disk; others may be the network's.
_STORAGE_ERRORS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}
)
_UNCHECKED = ".unchecked"
"""A folder beside a repository's files; what a dot begins is not looked through for models."""

_SYNTAX = re.compile(
    re.escape(HUGGING_FACE_PREFIX) + r"(?P<repo_id>[\w-][\w.-]*/[\w-][\w.-]*):(?P<file>[^:\\]+)", re.ASCII
)


@dataclass(frozen=True)
class HuggingFaceFile:
    """A file of a repository; `file` may be in a folder, as in `Q4_K_M/model.gguf`."""

    repo_id: str
    file: str

    def __str__(self) -> str:
        return f"{HUGGING_FACE_PREFIX}{self.repo_id}:{self.file}"


def parse_hugging_face_name(name: str) -> HuggingFaceFile:
    """Understands a name of the form `hf:owner/repo:file.gguf`.

    Raises:
        ParameterError: the name has another form; the message shows the right one.
    """
    match = _SYNTAX.fullmatch(name)
    # The parts of the file's name become a path in the cache: it must stay below it, and clear of hidden records.
    if match is None or any(not part or part.startswith(".") for part in match["file"].split("/")):
        raise ParameterError(f"{name!r} is not a name of the form {HUGGING_FACE_SYNTAX}")
    if not match["file"].lower().endswith(GGUF_SUFFIX):
        raise ParameterError(f"{name!r} names no {GGUF_SUFFIX} file; the form is {HUGGING_FACE_SYNTAX}")
    return HuggingFaceFile(match["repo_id"], match["file"])


def fetch_from_hugging_face(
    wanted: HuggingFaceFile,
    cache_dir: Path,
    progress: Progress | None = None,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """The file in the cache; downloaded if it is not there.

    What has arrived takes its place when `check` has seen it and raised nothing; if it raises, the file is removed.

    A file that is there is used without asking the Hub for a newer one: minfer starts without a network. Delete it to
    get a newer one. An interrupted download is resumed by the next.

    Raises:
        DownloadError: with the reason: offline, not found, gated, or what huggingface_hub says.
    """
    directory = repository_dir(cache_dir, wanted.repo_id)
    target = directory / wanted.file
    if target.is_file():
        return target

    # Importing huggingface_hub takes a good part of a second, which only those who download should pay.
    import huggingface_hub
    from huggingface_hub import errors

    where = f"https://huggingface.co/{wanted.repo_id}"
    arrives_in = directory if check is None else directory / _UNCHECKED
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = huggingface_hub.hf_hub_download(
            wanted.repo_id, wanted.file, local_dir=arrives_in, tqdm_class=_progress_bar_class(wanted.file, progress)
        )
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{wanted.repo_id} is gated: accept its terms at {where}, then log in with `hf auth login` "
            f"(or set HF_TOKEN)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"there is no repository {wanted.repo_id} on the Hugging Face Hub, or it is private; if it is yours, "
            f"log in with `hf auth login` (or set HF_TOKEN)"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise DownloadError(
            f"{wanted.file} of {wanted.repo_id} is not in {cache_dir}, and the Hugging Face Hub can't be reached "
            f"({error.__cause__ or error}): is this machine offline?"
        ) from error
    except errors.EntryNotFoundError as error:
        raise DownloadError(f"{wanted.repo_id} has no file {wanted.file}; its files are listed at {where}") from error
    except OSError as error:
        if error.errno in _STORAGE_ERRORS:
            raise DownloadError(unstored(wanted.file, directory, error)) from error
        raise DownloadError(f"{wanted.file} could not be downloaded from {where}: {error}") from error
    except Exception as error:  # whatever it is, the user needs to know what failed, and the cause is kept
        raise DownloadError(f"{wanted.file} could not be downloaded from {where}: {error}") from error
    if check is not None:
        _take(Path(path), target, check)
    return target


def _take(arrived: Path, target: Path, check: Callable[[Path], None]) -> None:
    try:
        try:
            check(arrived)
        except DownloadError:
            arrived.unlink()
            raise
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(arrived, target)
    except OSError as error:
        raise DownloadError(unstored(target.name, target.parent, error)) from error


def _progress_bar_class(file: str, progress: Progress | None) -> Any:
    """huggingface_hub reports to an instance, made by itself, of a tqdm class: one that hands on to `progress`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *_: object, total: int | None = None, initial: int = 0, **_options: object) -> None:
            super().__init__(disable=True, total=total, initial=initial)  # type: ignore[no-untyped-call]
            self._finished = progress is None
            if progress is not None:
                progress.start(f"Downloading {file}", total)
                progress.advance(initial)

        def update(self, n: float | None = 1) -> None:
            if progress is not None:
                progress.advance(int(n or 0))

        def update_transfer(self, n: float) -> None:
            """Bytes on the wire, which huggingface_hub counts beside those of the file, in the same bar if it can."""

        def set_transfer_postfix_str(self, *_: object, **_options: object) -> None:
            """The rate on the wire."""

        def close(self) -> None:  # is called again when the bar is collected
            if progress is not None and not self._finished:
                self._finished = True
                progress.finish()

    return Bar
