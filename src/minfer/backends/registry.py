"""The backends by name."""

from __future__ import annotations

from minfer.backends.base import Backend
from minfer.backends.reference import ReferenceBackend
from minfer.errors import UnsupportedError

BACKEND_NAMES: tuple[str, ...] = ("reference",)
"""Every backend, the default one first."""


def make_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        UnsupportedError: lists the backends there are.
    """
    if name == "reference":
        return ReferenceBackend()
    raise UnsupportedError(f"backend {name!r}", BACKEND_NAMES)
