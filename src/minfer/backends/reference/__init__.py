"""The reference backend: the definition of every op, in NumPy."""

from minfer.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
