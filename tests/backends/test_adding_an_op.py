"""The example of docs/architecture.md, followed to the letter in a copy of the package: the op works, on both backends
and through every pass, with nothing else touched than the three folders of ops."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import minfer

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## Adding an op") : TEXT.index("## Adding a pass")]
BLOCK = re.compile(r"`([\w/]+\.py)`[^`]*\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

PASSES = """
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.graph import GraphBuilder
from minfer.graph.ops import Clamp, SelectRows
from minfer.passes import PassContext, lower
from minfer.quants import GGMLType
from small_graphs import BOUNDS

b = GraphBuilder()
x = b.embedding(b.input("tokens"), b.weight("table", (20, 64), GGMLType.F32), "x")
rows = b.select_rows(b.apply(Clamp(0.5), [x], "limited"), b.input("output_rows"), "rows")
for backend in (CpuBackend(), ReferenceBackend()):
    graph = lower(b.build({"logits": rows}), PassContext((backend,), BOUNDS))
    assert [node.name for node in graph.nodes] == ["x", "x.rows", "limited"]  # narrow: row_wise
    assert graph.storage(graph.nodes[2].outputs[0]) == graph.nodes[1].outputs[0]  # alias: in_place_inputs
print("as the traits say")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the copy, where the example has been followed."""
    root = tmp_path_factory.mktemp("with an op more")
    copy = root / "minfer"
    shutil.copytree(Path(minfer.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    blocks = BLOCK.findall(SECTION)
    assert [path for path, _ in blocks] == [
        "graph/ops/elementwise.py",
        "backends/reference/clamp.py",
        "backends/cpu/ops/clamp.py",
        "tests/cpu/test_clamp.py",
    ]
    for path, code in blocks:
        file = root / path if path.startswith("tests") else copy / path
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = "new file" in SECTION[: SECTION.index(code)].rsplit("```", 2)[-2]
        assert is_new != file.exists()
        file.write_text(code if is_new else f"{file.read_text()}\n\n{code}")
    insert(copy / "graph/ops/__init__.py", "elementwise import ", "Clamp, ")
    insert(copy / "graph/ops/__init__.py", "OPS: tuple[type[Op], ...] = (", "Clamp, ")
    insert(copy / "graph/ops/__init__.py", "__all__ = [", '"Clamp", ')
    for path, package in (("backends/reference/kernels.py", "reference"), ("backends/cpu/ops/__init__.py", "cpu.ops")):
        insert(copy / path, f"from minfer.backends.{package} import (", "clamp, ")
        insert(copy / path, "_MODULES = (", "clamp, ")
    return root


def insert(file: Path, after: str, text: str) -> None:
    before, found, behind = file.read_text().partition(after)
    assert found
    file.write_text(before + found + text + behind)


def run(package: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(package), str(TESTS)))}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=package, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_passes_its_test(package: Path) -> None:
    output = run(package, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cpu/test_clamp.py")
    assert re.search(r"^\d+ passed", output, re.MULTILINE)


def test_passes_go_by_its_traits(package: Path) -> None:
    assert run(package, "-c", PASSES) == "as the traits say\n"
