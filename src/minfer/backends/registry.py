"""The backends by name."""

from __future__ import annotations

from minfer.backends.base import Backend
from minfer.backends.reference import ReferenceBackend
from minfer.errors import UnsupportedError
from minfer.settings import Settings

BACKEND_NAMES: tuple[str, ...] = ("cpu", "reference")
"""Every backend, the default one first."""


def make_backend(name: str, settings: Settings) -> Backend:
    """The backend of that name.

    Raises:
        UnsupportedError: lists the backends there are; or an instruction set that this CPU does not have.
    """
    match name:
        case "cpu":
            # Here, so that the reference backend needs no LLVM.
            from minfer.backends.cpu import CpuBackend

            return CpuBackend(settings.isa, settings.cache_dir / "kernels")
        case "reference":
            return ReferenceBackend()
        case _:
            raise UnsupportedError(f"backend {name!r}", BACKEND_NAMES)
