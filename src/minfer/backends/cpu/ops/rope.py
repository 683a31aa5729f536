"""Rope: turns pairs of dimensions by tabulated angles.

(a, b) -> (a cos - b sin, a sin + b cos), with cos and sin of position * frequency, times the magnitude, from tables
f32 [n, n_rot / 2] that the host computes in float64 once a step for all layers (`rope_table`).

Argument block: 0 x f32 [n, n_heads, head_dim], 1 y (may be x), 2 cos, 3 sin. One token a chunk.
Numerics: table entries are rounded once, each result twice more; angles are right at any position. Bound by latency.
Source: Su et al., "RoFormer" (2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cpu.convention import StepWord, argument_pointer, tape_kernel
from minfer.backends.cpu.emission import CpuOp, Emission, Prepare
from minfer.graph import Node, StepInputs, Symbol
from minfer.graph.ops import Rope, RopeStyle
from minfer.simd import Kernel, KernelIR, Value, f32


@dataclass(frozen=True)
class RopeShape:
    """What a kernel is traced for."""

    style: RopeStyle
    n_heads: int
    head_dim: int
    n_rot: int


def rope_table(
    frequencies: Sequence[float],
    magnitude: float,
    positions: NDArray[np.int32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
) -> None:
    """Fills cos and sin, f32 [n, n_rot / 2], for the positions int32 [n]."""
    angles = positions.astype(np.float64)[:, None] * np.asarray(frequencies, np.float64)
    cos[: len(positions)] = np.cos(angles) * magnitude
    sin[: len(positions)] = np.sin(angles) * magnitude


def trace_rope(shape: RopeShape) -> KernelIR:
    """The kernel for a shape."""
    k, args, _, token = tape_kernel("rope")
    x, y, cos, sin = (argument_pointer(k, args, i, f32) for i in range(4))
    rotate_token(k, shape, token, x, y, cos, sin)
    return k.finish()


def rotate_token(k: Kernel, shape: RopeShape, token: Value, x: Value, y: Value, cos: Value, sin: Value) -> None:
    """Traces the rotation of the heads of one token; the pointers are to the first token's."""
    half = shape.n_rot // 2
    with k.loop(0, shape.n_heads) as head:
        at = (token * shape.n_heads + head) * shape.head_dim
        _rotate(k, shape, x + at, y + at, cos + token * half, sin + token * half)


def _rotate(k: Kernel, shape: RopeShape, x: Value, y: Value, cos: Value, sin: Value) -> None:
    half = shape.n_rot // 2
    lanes = math.gcd(half, 16)
    with k.loop(0, half, lanes) as i:
        c, s = k.load(cos + i, lanes), k.load(sin + i, lanes)
        match shape.style:
            case RopeStyle.NON_INTERLEAVED:
                a, b = k.load(x + i, lanes), k.load(x + i + half, lanes)
                k.store(y + i, k.fma(a, c, -(b * s)))
                k.store(y + i + half, k.fma(a, s, b * c))
            case RopeStyle.INTERLEAVED:
                pairs = k.load(x + i * 2, 2 * lanes)
                a, b = k.shuffle(pairs, range(0, 2 * lanes, 2)), k.shuffle(pairs, range(1, 2 * lanes, 2))
                turned = k.concat(k.fma(a, c, -(b * s)), k.fma(a, s, b * c))
                order = [index for pair in range(lanes) for index in (pair, pair + lanes)]
                k.store(y + i * 2, k.shuffle(turned, order))
    if shape.n_rot < shape.head_dim:
        rest = math.gcd(shape.head_dim - shape.n_rot, 16)
        with k.loop(shape.n_rot, shape.head_dim, rest) as i:
            k.store(y + i, k.load(x + i, rest))


def _emit(e: Emission, node: Node, op: Rope) -> Prepare | None:
    prepare, tables = rope_tables(e, op)
    arguments = (e.address(node.inputs[0]), e.address(node.outputs[0]), *tables)
    kernel = e.tape.kernel(trace_rope, rope_shape(e, node, op))
    e.tape.add(kernel, arguments, rows=StepWord.N_TOKENS, rows_per_chunk=1)
    return prepare


def rope_shape(e: Emission, node: Node, op: Rope) -> RopeShape:
    """The shape of a node's kernel."""
    _, n_heads, head_dim = e.spec(node.inputs[0]).shape
    return RopeShape(op.style, int(n_heads), int(head_dim), op.n_rot)


def rope_tables(e: Emission, op: Rope) -> tuple[Prepare | None, tuple[int, int]]:
    """What fills the tables of cos and sin, where no node before does, and their addresses."""
    key, n_rows = (op.frequencies, op.magnitude), e.bounds[Symbol.N_TOKENS]
    n_bytes = 4 * n_rows * (op.n_rot // 2)
    (cos, is_new), (sin, _) = (e.shared((part, *key), n_bytes) for part in ("cos", "sin"))

    def fill(inputs: StepInputs) -> None:
        tables = (table.view(np.float32).reshape(n_rows, -1) for table in (cos, sin))
        rope_table(op.frequencies, op.magnitude, inputs.positions, *tables)

    return fill if is_new else None, (cos.ctypes.data, sin.ctypes.data)


OPS = (CpuOp(Rope, _emit),)
