"""Where a traced instruction comes from, and the exceptions of the kernel language.

MinferError
├── KernelError           something is wrong with one kernel; names it, and the Python line where that is known
│   ├── TraceError        the Python function uses the language wrongly; raised while it traces
│   ├── CompileError      LLVM refuses the module
│   └── InterpretError    the interpreter met what compiled code must never meet, such as an access out of bounds
└── ObjectCacheError      the directory for compiled objects can't be trusted
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.errors import MinferError


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a Python file: the one that traced an instruction."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class KernelError(MinferError):
    """Base of the errors in one kernel. `kernel` is its name, `location` the Python line, where that is known."""

    def __init__(self, message: str, *, kernel: str, location: Location | None = None) -> None:
        self.kernel = kernel
        self.location = location
        where = f" at {location}" if location is not None else ""
        super().__init__(f"kernel {kernel!r}{where}: {message}")


class TraceError(KernelError):
    """A kernel uses the language wrongly: mixed types, a value out of its block, a constant out of range."""


class CompileError(KernelError):
    """LLVM refuses what a kernel was lowered to, or the compiled object can't be loaded."""


class InterpretError(KernelError):
    """The interpreter met what compiled code must never meet: bounds, alignment, division by zero, endless loops."""


class ObjectCacheError(MinferError):
    """The directory for compiled objects, or an entry of it, is not private to the user."""
