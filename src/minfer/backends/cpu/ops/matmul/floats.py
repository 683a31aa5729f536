"""MatMul and GatedMatMul over float weights (F32, F16, BF16): y[t, r] = sum_k x[t, k] w[r, k] (+ bias[r]).

Panels of 16 rows, one after the other: [k][16 rows] of the file's element type. Activations are rows f32 [n,
n_columns]. For every token and row the products are added by fma in float32, in the order of k, in `PARTIAL_SUMS`
partial sums (k modulo that number) which are added by a fixed tree: the same bits on every path.

Argument block as for `quantised.py`, with word 2 = x f32. y must not overlap what is read. Error at most
ceil(n_columns / PARTIAL_SUMS) + 3 units roundoff of the sum of magnitudes.

Chunks count tiles of tokens first, then parts: chunk % n_tiles is the tile, so that chunks that run one after the
other use the same weights while these are in the cache. Bound by reading the weights at one token, by fma for many:
there, tiles of 4 tokens come within a twentieth of larger ones, which compute what is not wanted for a few tokens.
Source: partial sums against the latency of fma, as in Goto and van de Geijn, Anatomy of high-performance matrix
multiplication (2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.convention import StepWord, argument, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.ops.activate import activate
from minfer.backends.cpu.panels.floats import ELEMENTS
from minfer.backends.cpu.panels.formats import F32X16, PANEL_ROWS
from minfer.graph.ops import ActivationKind
from minfer.quants import GGMLType
from minfer.simd import Kernel, KernelIR, Scalar, Value, f32

PARTIAL_SUMS = 4
TILE_ROWS = 4


@dataclass(frozen=True)
class FloatShape:
    """What a kernel is traced for."""

    ggml_type: GGMLType
    n_columns: int
    rows: StepWord
    has_bias: bool = False
    gate: ActivationKind | None = None

    @property
    def element(self) -> Scalar:
        return ELEMENTS[self.ggml_type]

    @property
    def panel_bytes(self) -> int:
        return self.n_columns * PANEL_ROWS * self.element.n_bytes

    def name(self, n_tile_rows: int) -> str:
        gate = "" if self.gate is None else f"_{self.gate.value}"
        bias = "_bias" if self.has_bias else ""
        element = self.ggml_type.name.lower()
        return f"matmul_float{n_tile_rows}_{element}_k{self.n_columns}{gate}{bias}_r{int(self.rows)}"


def trace_float(shape: FloatShape, n_tile_rows: int) -> KernelIR:
    """The kernel for tiles of `n_tile_rows` tokens."""
    k, args, step, chunk = tape_kernel(shape.name(n_tile_rows))
    n_weights = 1 if shape.gate is None else 2
    weights = [argument_pointer(k, args, i, shape.element) for i in range(n_weights)]
    x, y = argument_pointer(k, args, 2, f32), argument_pointer(k, args, 3, f32)
    n_rows, n_panels, panels_per_part = (argument(k, args, i) for i in range(5, 8))
    n_tokens = step_count(k, step, shape.rows)
    n_tiles = (n_tokens + (n_tile_rows - 1)) // n_tile_rows
    first_row = chunk % n_tiles * n_tile_rows
    first_panel = chunk // n_tiles * panels_per_part
    n_left = n_tokens - first_row
    # Rows that the step does not have are computed from the tile's first one, and not stored.
    sources = [x + k.select(n_left > m, first_row + m, first_row) * shape.n_columns for m in range(n_tile_rows)]
    with k.loop(first_panel, k.minimum(first_panel + panels_per_part, n_panels)) as p:
        sums = [_sum_panel(k, shape, w + p * (shape.n_columns * PANEL_ROWS), sources) for w in weights]
        mask = k.first_lanes(n_rows - p * PANEL_ROWS, PANEL_ROWS)
        for m in range(n_tile_rows):
            value = sums[0][m]
            if shape.has_bias:
                value = value + k.load(argument_pointer(k, args, 4, f32) + p * PANEL_ROWS, PANEL_ROWS, mask=mask)
            if shape.gate is not None:
                value = activate(k, shape.gate, value) * sums[1][m]
            with k.if_(n_left > m):
                k.store(y + (first_row + m) * n_rows + p * PANEL_ROWS, value, mask=mask)
    return k.finish()


def _sum_panel(k: Kernel, shape: FloatShape, panel: Value, sources: list[Value]) -> list[Value]:
    partial = [[k.var(k.const(F32X16, 0.0)) for _ in range(PARTIAL_SUMS)] for _ in sources]

    def add(column: Value | int, index: int) -> None:
        w = k.load(panel + column * PANEL_ROWS, PANEL_ROWS)
        wide = w if shape.element is f32 else w.to(f32)
        for source, sums in zip(sources, partial, strict=True):
            sums[index].set(k.fma(wide, k.splat(k.load(source + column), PANEL_ROWS), sums[index].get()))

    whole = shape.n_columns // PARTIAL_SUMS * PARTIAL_SUMS
    with k.loop(0, whole, PARTIAL_SUMS) as column:
        for index in range(PARTIAL_SUMS):
            add(column + index, index)
    for column_left in range(whole, shape.n_columns):
        add(column_left, column_left - whole)
    totals = []
    for sums in partial:
        values = [each.get() for each in sums]
        while len(values) > 1:
            half = len(values) // 2
            values = [a + b for a, b in zip(values[:half], values[half:], strict=True)]
        totals.append(values[0])
    return totals
