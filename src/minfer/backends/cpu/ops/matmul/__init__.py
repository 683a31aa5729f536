"""Matrix products: kernels for quantised and for float weights, which of them for how many tokens, and emission."""

from minfer.backends.cpu.ops.matmul.emit import OPS

__all__ = ["OPS"]
