"""Backends: the protocol, the registry, and one package for each."""

from minfer.backends.base import Backend, CompileRequest, Program, WeightSource
from minfer.backends.registry import BACKEND_NAMES, make_backend

__all__ = ["BACKEND_NAMES", "Backend", "CompileRequest", "Program", "WeightSource", "make_backend"]
