"""The CPU backend: kernels traced for this very CPU, over weights packed in panels."""

from minfer.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
