"""The code in docs/kernel-language.md runs, from top to bottom, and the page names what there is."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import minfer.simd
from minfer.simd import Kernel
from minfer.simd.targets import _INSTRUCTION_SETS

PAGE = Path(__file__).parents[2] / "docs" / "kernel-language.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("kernel_language_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = list(BLOCK.finditer(TEXT))
    assert len(blocks) >= 8
    for block in blocks:
        # Empty lines in front make the line numbers of errors those of the page.
        n_lines_before = TEXT.count("\n", 0, block.start(1))
        exec(compile("\n" * n_lines_before + block[1], str(PAGE), "exec"), module.__dict__)


def test_the_page_names_every_operation() -> None:
    reference = TEXT[TEXT.index("## Reference") :]
    operations = {name for name in vars(Kernel) | vars_of_bases() if not name.startswith("_")}
    internal = {"append", "operand", "emit", "fail", "new_register", "coerce", "constant", "constant_element"}
    internal |= {"check_scalar", "check_vector", "is_open"}
    assert internal <= operations
    missing = {name for name in operations - internal if not re.search(rf"\b{name}\b", reference)}
    assert not missing


def vars_of_bases() -> dict[str, object]:
    return {name: value for base in Kernel.__mro__[1:-1] for name, value in vars(base).items()}


def test_the_page_names_every_target() -> None:
    table = TEXT[TEXT.index("### Targets") :]
    assert {each.name for each in _INSTRUCTION_SETS} == set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_everything_exported_exists_once() -> None:
    assert sorted(set(minfer.simd.__all__)) == sorted(minfer.simd.__all__)
    for name in minfer.simd.__all__:
        assert hasattr(minfer.simd, name)
