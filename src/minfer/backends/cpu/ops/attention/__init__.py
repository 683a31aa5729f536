"""Attention: kernels in two layouts of one arithmetic, which of them for how many tokens, and emission."""

from minfer.backends.cpu.ops.attention.emit import OPS

__all__ = ["OPS"]
