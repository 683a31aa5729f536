"""The entries of a matrix product: which path for how many tokens, and how the panels are shared out among threads."""

from __future__ import annotations

from dataclasses import dataclass

from minfer.backends.cpu.ops.matmul import floats, quantised
from minfer.backends.cpu.ops.matmul.floats import FloatShape
from minfer.backends.cpu.ops.matmul.quantised import MatMulShape
from minfer.backends.cpu.panels.formats import PANEL_ROWS
from minfer.backends.cpu.tape import Tape

_DIRECT_CHUNK_BYTES = 1 << 20
"""Weights that a chunk of the direct path streams: long enough that asking ahead, ours and the CPU's, seldom runs past
its end into what another thread reads."""
_TILES_SCRATCH_BYTES = 320 << 10
"""Unpacked panels of a chunk of the tiles path: they stay in the second-level cache."""
_CHUNK_OVERHEAD = 0.17
"""What a chunk of the tiles path costs, in panels: measured for one panel a chunk against many."""
_END_WAIT = 0.3


@dataclass(frozen=True)
class Operands:
    """Addresses of what a product reads and writes; 0 for what it does not have."""

    weights: tuple[int, int]
    """the second is that of a gated product"""
    x: int
    """rows f32, or records for quantised weights"""
    y: int
    bias: int
    n_rows: int
    """rows of a weight"""

    @property
    def n_panels(self) -> int:
        return -(-self.n_rows // PANEL_ROWS)

    def arguments(self, panels_per_part: int) -> tuple[int, ...]:
        """The argument block, which all kernels of products share."""
        n_parts = -(-self.n_panels // panels_per_part)
        return (*self.weights, self.x, self.y, self.bias, self.n_rows, self.n_panels, panels_per_part, n_parts)


def add_matmul(tape: Tape, shape: MatMulShape, operands: Operands, *, n_threads: int, barrier: bool) -> None:
    """A product with quantised weights: one path for a token, one for a few, one for many."""
    key, n_panels = shape.name(""), operands.n_panels
    panel_bytes = shape.panel.panel_bytes(shape.n_columns) * shape.n_weights
    panels = even_share(n_panels, n_threads, _DIRECT_CHUNK_BYTES // panel_bytes)
    few = quantised.MAX_DIRECT_ROWS
    for trace, rows_per_chunk, min_rows, max_rows in (
        (quantised.trace_direct, 1, 1, 1),
        (quantised.trace_direct_tiles, 0, 2, few),
    ):
        tape.add(
            tape.kernel(trace, shape, key=key),
            operands.arguments(panels),
            rows=shape.rows,
            rows_per_chunk=rows_per_chunk,
            n_parts=-(-n_panels // panels),
            min_rows=min_rows,
            max_rows=max_rows,
            barrier=barrier,
        )
    panel_scratch = shape.unpacked_panel_bytes * shape.n_weights
    panels = even_share(n_panels, n_threads, _TILES_SCRATCH_BYTES // panel_scratch)
    tape.add(
        tape.kernel(quantised.trace_tiles, shape, key=key),
        operands.arguments(panels),
        rows=shape.rows,
        rows_per_chunk=0,
        n_parts=-(-n_panels // panels),
        min_rows=few + 1,
        scratch_bytes=panels * panel_scratch,
        barrier=barrier,
    )


def add_matmul_float(tape: Tape, shape: FloatShape, operands: Operands, *, n_threads: int, barrier: bool) -> None:
    """A product with float weights."""
    panels = even_share(operands.n_panels, n_threads, _DIRECT_CHUNK_BYTES // shape.panel_bytes)
    for n_tile_rows, min_rows, max_rows in ((1, 1, 1), (floats.TILE_ROWS, 2, 1 << 40)):
        tape.add(
            tape.kernel(floats.trace_float, shape, n_tile_rows),
            operands.arguments(panels),
            rows=shape.rows,
            rows_per_chunk=n_tile_rows,
            n_parts=-(-operands.n_panels // panels),
            min_rows=min_rows,
            max_rows=max_rows,
            barrier=barrier,
        )


def even_share(n_panels: int, n_threads: int, most: int) -> int:
    """How many panels make a chunk, at most `most` (but at least one): few enough that all threads end together, and no
    fewer.

    Threads take chunks in rounds. A chunk costs something of its own (`_CHUNK_OVERHEAD`), and at the end, threads wait
    for the one that took the last chunk (`_END_WAIT` of it on average, since none is as fast as another).
    """

    def cost(share: int) -> float:
        rounds = -(-n_panels // (share * n_threads))
        return rounds * (share + _CHUNK_OVERHEAD) + _END_WAIT * share

    return min(range(1, max(most, 1) + 1), key=cost)
