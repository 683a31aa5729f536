"""What every benchmark writes beside its figures, and where: one JSON object a line."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def facts(model: str | Path, threads: int) -> dict[str, Any]:
    """Commit (`+` after it where files differ from it), CPU, threads, the model's file and versions."""
    import llvmlite
    import llvmlite.binding
    import numpy

    import minfer

    return {
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else ""),
        "cpu": _cpu(),
        "threads": threads,
        "model": Path(model).name,
        "minfer": minfer.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvmlite.binding.llvm_version_info)),
    }


def show_facts(known: Mapping[str, Any]) -> None:
    """One line of them."""
    print(", ".join(f"{name} {value}" for name, value in known.items()))


def append_lines(path: Path | None, lines: Iterable[Mapping[str, Any]]) -> None:
    """Adds JSON lines to a file, where one is given."""
    if path is not None:
        with path.open("a", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
