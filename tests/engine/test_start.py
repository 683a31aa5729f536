"""Starting: kernels are compiled once and kept, whoever else starts, is killed, or has changed the sources."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import minfer
from minfer.errors import UnsupportedError
from minfer.simd import host_target_names, llvm
from tiny_load import tiny_path

TOKENS = list(range(3, 23))


class Phases:
    """Keeps what a progress bar would be told."""

    def __init__(self) -> None:
        self.descriptions: list[str] = []

    def start(self, description: str, total_bytes: int | None) -> None:
        self.descriptions.append(description)

    def advance(self, n_bytes: int) -> None:
        """Nothing is shown."""

    def finish(self) -> None:
        """Nothing is shown."""


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this user's."""
    monkeypatch.setenv("MINFER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def n_compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for every module that LLVM is asked to compile, from here on."""
    real, calls = llvm.emit_object, []

    def counting(text: str, *, triple: str, cpu: str, features: str) -> bytes:
        calls.append(triple)
        return real(text, triple=triple, cpu=cpu, features=features)

    monkeypatch.setattr(llvm, "emit_object", counting)
    return calls


def test_the_first_start_says_that_it_compiles_and_the_second_does_not(
    cache_dir: Path, tiny_dir: Path, n_compiled: list[str]
) -> None:
    logits = []
    for is_first in (True, False):
        n_compiled.clear()
        told = Phases()
        with minfer.load(tiny_path(tiny_dir), backend="cpu", progress=told) as model:
            logits.append(model.logits(TOKENS))
        compiling = [each for each in told.descriptions if each.startswith("compiling")]
        if is_first:
            assert compiling[0].endswith(f" kernels for {host_target_names()[0]}")
            entries = sorted((cache_dir / "kernels").iterdir())
            assert len(entries) == len(n_compiled) > 0
        else:
            assert compiling == n_compiled == []
            assert sorted((cache_dir / "kernels").iterdir()) == entries
    assert logits[0].tobytes() == logits[1].tobytes()


def test_another_number_of_threads_needs_no_other_kernels(
    cache_dir: Path, tiny_dir: Path, n_compiled: list[str]
) -> None:
    minfer.load(tiny_path(tiny_dir), backend="cpu", threads=1).close()
    assert n_compiled
    n_compiled.clear()
    minfer.load(tiny_path(tiny_dir), backend="cpu", threads=3).close()
    assert n_compiled == []


def test_each_instruction_set_has_kernels_of_its_own(
    cache_dir: Path, tiny_dir: Path, n_compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in host_target_names() if name != "portable"][:2] or ["portable"]
    for is_first in (True, False):
        for name in names:
            monkeypatch.setenv("MINFER_ISA", name)
            n_compiled.clear()
            told = Phases()
            minfer.load(tiny_path(tiny_dir), backend="cpu", progress=told).close()
            compiling = [each for each in told.descriptions if each.startswith("compiling")]
            assert bool(n_compiled) == bool(compiling) == is_first
            assert all(each.endswith(f" for {name}") for each in compiling)
    monkeypatch.setenv("MINFER_ISA", "sse9")
    with pytest.raises(UnsupportedError, match=r"'sse9'.*portable"):
        minfer.load(tiny_path(tiny_dir), backend="cpu")


LOAD = """
import sys
import minfer
from minfer.simd import llvm
real, n_compiled = llvm.emit_object, 0
def counting(text, **target):
    global n_compiled
    n_compiled += 1
    return real(text, **target)
llvm.emit_object = counting
"""
ANSWER = """
with minfer.load(sys.argv[1], backend="cpu", threads=2) as model:
    print(n_compiled, model.logits(list(range(3, 23))).tobytes().hex())
"""
DIE_WHILE_COMPILING = """
import os, signal
llvm.emit_object = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
"""
DIE_WHILE_WRITING = """
import os, signal
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def command(script: str, model: Path) -> list[str]:
    return [sys.executable, "-c", script, str(model)]


def start(model: Path, *, package: Path | None = None) -> tuple[int, np.ndarray]:
    """Starts a process: how many modules it compiled, and its logits. `package` stands in for minfer's sources."""
    environment = dict(os.environ) if package is None else {**os.environ, "PYTHONPATH": str(package.parent)}
    done = subprocess.run(command(LOAD + ANSWER, model), capture_output=True, text=True, env=environment, check=True)
    return read_answer(done.stdout)


def read_answer(text: str) -> tuple[int, np.ndarray]:
    n_compiled, logits = text.split()
    return int(n_compiled), np.frombuffer(bytes.fromhex(logits), np.float32)


def test_processes_that_start_at_once(cache_dir: Path, tiny_dir: Path) -> None:
    model = tiny_path(tiny_dir)
    processes = [subprocess.Popen(command(LOAD + ANSWER, model), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    answers = [read_answer(each)[1] for each in outputs]
    kept = {path.suffix for path in (cache_dir / "kernels").iterdir()}
    assert kept == {".kernels"}
    n_compiled, after = start(model)
    assert n_compiled == 0
    assert all(np.array_equal(after, each) for each in answers)


@pytest.mark.skipif(os.name == "nt", reason="kills by a signal")
def test_a_process_that_is_killed(cache_dir: Path, tiny_dir: Path) -> None:
    model = tiny_path(tiny_dir)
    for death in (DIE_WHILE_COMPILING, DIE_WHILE_WRITING):
        died = subprocess.run(command(LOAD + death + ANSWER, model), check=False, capture_output=True)
        assert died.returncode == -signal.SIGKILL
        assert not list((cache_dir / "kernels").glob("*.kernels"))
    assert start(model)[0] > 0
    assert start(model)[0] == 0


def test_changed_sources(cache_dir: Path, tiny_dir: Path, tmp_path: Path) -> None:
    """A change shows at once, though the cache has kernels of the sources as they were; and those serve again later."""
    model, package = tiny_path(tiny_dir), tmp_path / "changed" / "minfer"
    shutil.copytree(Path(minfer.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    n_compiled, before = start(model, package=package)
    assert n_compiled > 0
    changes = {
        "backends/cpu/ops/activate.py": ("(k.exp(-x) + 1.0)", "(k.exp(-x) + 2.0)"),
        "simd/mathfn.py": ("_LOG2_E = 1.4", "_LOG2_E = 1.5"),
    }
    for name, (old, new) in changes.items():
        source = package / name
        text = source.read_text()
        assert old in text
        source.write_text(text.replace(old, new))
        n_compiled, after = start(model, package=package)
        assert n_compiled > 0
        assert not np.allclose(before, after)
        source.write_text(text)
    n_compiled, again = start(model, package=package)
    assert n_compiled == 0
    assert np.array_equal(before, again)
    for name in ("quants/iq4.py", "graph/inputs.py"):
        source = package / name
        source.write_text(source.read_text() + "# whose constants are in the kernels\n")
        assert start(model, package=package)[0] > 0
