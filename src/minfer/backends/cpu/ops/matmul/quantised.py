"""MatMul and GatedMatMul over packed panels: y[t, r] = sum_k x[t, k] w[r, k] (+ bias[r]), and activation(gate) * up.

Activations come quantised (`activations.py`): int8 with a scale for every 32 columns. For a token, a row of the
weight, and each group of columns (32, or 16 where the format has a scale for 16), in the order of the columns:

    s = sum of (u - zero) * q           an exact integer
    acc = fma(float(s), scale * d, acc)
    acc = fma(offset, sum(q) * d, acc)  for formats with offsets

in float32. That is the whole of the arithmetic, and every path keeps to it, so that a token's result has the same bits
whether it is computed alone, in a batch, from packed panels or from unpacked ones.

Two paths. *Direct* unpacks 32 columns of 16 rows into registers and uses them at once, for one token or for tiles of up
to `DIRECT_TILE_ROWS`; one token is bound by reading the weights. *Tiles*, for many tokens: a part of the panels is
unpacked once into the thread's scratch memory as bytes with float32 scales, then multiplied with tiles of `TILE_ROWS`
tokens; bound by the `dot4` units. 12 accumulators, 8 vectors of weights and the temporaries fill the 32 registers of
AVX-512. Unpacking again for every tile costs less than writing and reading it until some 100 tokens share it.

Argument block of both: 0 panels, 1 second panels (gated only), 2 quantised rows, 3 y f32 [n, n_rows], 4 bias f32
[n_rows] (with `has_bias`), 5 n_rows, 6 n_panels, 7 panels a part, 8 n_parts. y must not overlap what is read.

Numerics: the products are exact, and so is s; each group adds two roundings. The error against float arithmetic is that
of quantising x: at most d/2 = max|x| / 254 a value. Source: the int8 scheme is that of llama.cpp's Q8_0 dot products.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from minfer.backends.cpu.activations import QuantisedRow
from minfer.backends.cpu.convention import StepWord, argument, argument_pointer, step_count, tape_kernel, thread_scratch
from minfer.backends.cpu.ops.activate import activate
from minfer.backends.cpu.panels.formats import (
    BLOCK,
    F32X16,
    GROUPS_OF_FOUR,
    I32X16,
    PANEL_ROWS,
    VECTOR_BYTES,
    PanelFormat,
    Registers,
)
from minfer.graph.ops import ActivationKind
from minfer.simd import Kernel, KernelIR, Value, Var, f32, i8, i32, u8, vec

TILE_ROWS = 12
DIRECT_TILE_ROWS = 8
SMALL_TILE_ROWS = 4
MAX_DIRECT_ROWS = 96
"""Up to so many tokens, the direct path is taken."""
_ASK_L1_BYTES = 2048
_ASK_L2_BYTES = 4096
_ASK_L2_BYTES_OF_TILES = 8192
"""How far ahead of the direct path its weights are asked for, into the caches of the first and the second level.
Measured with models of 0.5 and 1.5 G weights on two threads; three times as far costs a tenth."""


@dataclass(frozen=True)
class MatMulShape:
    """What a kernel is traced for."""

    panel: PanelFormat
    n_columns: int
    rows: StepWord
    has_bias: bool = False
    gate: ActivationKind | None = None

    @property
    def n_weights(self) -> int:
        return 1 if self.gate is None else 2

    @property
    def unpacked_zero(self) -> int:
        return 0 if self.panel.zero == 0 else 128

    @property
    def unpacked_block_bytes(self) -> int:
        """Bytes of 32 unpacked columns of a panel: f32 scales, f32 offsets, 8 vectors of bytes."""
        return 64 * self.panel.n_groups * (1 + self.panel.has_offset) + VECTOR_BYTES * GROUPS_OF_FOUR

    @property
    def unpacked_panel_bytes(self) -> int:
        return self.n_columns // BLOCK * self.unpacked_block_bytes

    def name(self, path: str) -> str:
        gate = "" if self.gate is None else f"_{self.gate.value}"
        bias = "_bias" if self.has_bias else ""
        return f"matmul_{path}_{self.panel.name}_k{self.n_columns}{gate}{bias}_r{int(self.rows)}"


@dataclass(frozen=True)
class _Arguments:
    weights: tuple[Value, ...]
    x: Value
    y: Value
    bias: Value | None
    n_rows: Value
    n_panels: Value
    panels_per_part: Value
    n_parts: Value


def _read_arguments(k: Kernel, args: Value, shape: MatMulShape) -> _Arguments:
    return _Arguments(
        weights=tuple(argument_pointer(k, args, i, u8) for i in range(shape.n_weights)),
        x=argument_pointer(k, args, 2, u8),
        y=argument_pointer(k, args, 3, f32),
        bias=argument_pointer(k, args, 4, f32) if shape.has_bias else None,
        n_rows=argument(k, args, 5),
        n_panels=argument(k, args, 6),
        panels_per_part=argument(k, args, 7),
        n_parts=argument(k, args, 8),
    )


def trace_direct(shape: MatMulShape) -> KernelIR:
    """The direct path for single tokens: a chunk is a token and a part of the panels."""
    k, args, _, chunk = tape_kernel(shape.name("direct"))
    a = _read_arguments(k, args, shape)
    with _panels_of(k, a, chunk % a.n_parts) as p:
        _direct_tile(k, shape, a, p, chunk // a.n_parts, 1, None)
    return k.finish()


def trace_direct_tiles(shape: MatMulShape) -> KernelIR:
    """The direct path for a few tokens. A chunk is a part of the panels and all tokens: the first tile of these brings
    a panel into the first-level cache for the others."""
    k, args, step, chunk = tape_kernel(shape.name("direct_tiles"))
    a = _read_arguments(k, args, shape)
    n_tokens = step_count(k, step, shape.rows)
    with _panels_of(k, a, chunk) as p, k.loop(0, n_tokens, DIRECT_TILE_ROWS) as row:
        n_left = n_tokens - row
        # Much of a tile's time is that of unpacking: two small ones would take longer than a large one.
        with k.if_(n_left > SMALL_TILE_ROWS):
            _direct_tile(k, shape, a, p, row, DIRECT_TILE_ROWS, n_left)
        with k.else_():
            _direct_tile(k, shape, a, p, row, SMALL_TILE_ROWS, n_left)
    return k.finish()


def _panels_of(k: Kernel, a: _Arguments, part: Value) -> AbstractContextManager[Value]:
    """A loop over the panels of a part."""
    first = part * a.panels_per_part
    return k.loop(first, k.minimum(first + a.panels_per_part, a.n_panels))


def _direct_tile(
    k: Kernel, shape: MatMulShape, a: _Arguments, p: Value, row: Value, n_rows: int, n_left: Value | None
) -> None:
    """One panel times `n_rows` tokens from `row` on, of which `n_left` are there."""
    panel, layout = shape.panel, QuantisedRow(shape.n_columns)
    x = a.x.offset_bytes(row * layout.stride_bytes)
    starts = [w.offset_bytes(p * panel.panel_bytes(shape.n_columns)) for w in a.weights]
    sums = [[k.var(k.const(F32X16, 0.0)) for _ in range(n_rows)] for _ in starts]
    pairs = list(zip(starts, sums, strict=True))
    # One token is bound by memory: both weights of a gated product are streamed together. The accumulators of more
    # tokens would not all stay in registers.
    for together in [pairs] if n_rows == 1 else [[pair] for pair in pairs]:
        with k.loop(0, shape.n_columns // panel.unit_columns) as unit:
            for start, accumulators in together:
                at = start.offset_bytes(unit * panel.unit_bytes)
                _direct_unit(k, panel, at, x, layout, unit * panel.n_blocks, accumulators)
    _finish(k, shape, a, sums, a.y + row * a.n_rows, p, n_left)


def _direct_unit(
    k: Kernel, panel: PanelFormat, at: Value, x: Value, layout: QuantisedRow, block: Value, accumulators: Sequence[Var]
) -> None:
    header = panel.emit_header(k, at)
    l2_bytes = _ASK_L2_BYTES if len(accumulators) == 1 else _ASK_L2_BYTES_OF_TILES
    if panel.n_blocks == 1:
        _ask(k, at, panel.unit_bytes, l2_bytes)
        registers = panel.emit_block(k, at, header)
        _accumulate(k, registers, panel.zero, panel.u_max, x, layout, block, accumulators)
        return
    with k.loop(0, panel.n_blocks) as i:
        here = at.offset_bytes(i * panel.block_bytes + panel.header_bytes)
        _ask(k, here, panel.block_bytes, l2_bytes)
        registers = panel.emit_block(k, here, header)
        _accumulate(k, registers, panel.zero, panel.u_max, x, layout, block + i, accumulators)


def _ask(k: Kernel, at: Value, n_bytes: int, l2_bytes: int) -> None:
    for offset in range(0, n_bytes, 64):
        k.prefetch(at.offset_bytes(l2_bytes + offset), locality=2)
        k.prefetch(at.offset_bytes(_ASK_L1_BYTES + offset))


def trace_tiles(shape: MatMulShape) -> KernelIR:
    """The path over unpacked panels, for any number of tokens. Needs scratch for the panels of a part."""
    layout = QuantisedRow(shape.n_columns)
    k, args, step, chunk = tape_kernel(shape.name("tiles"))
    a = _read_arguments(k, args, shape)
    scratch = thread_scratch(k)
    n_tokens = step_count(k, step, shape.rows)
    first_panel = chunk * a.panels_per_part
    last_panel = k.minimum(first_panel + a.panels_per_part, a.n_panels)
    with k.loop(first_panel, last_panel) as p:
        for i, w in enumerate(a.weights):
            into = scratch.offset_bytes(((p - first_panel) * shape.n_weights + i) * shape.unpacked_panel_bytes)
            _unpack(k, shape, w.offset_bytes(p * shape.panel.panel_bytes(shape.n_columns)), into)
    n_large = n_tokens // TILE_ROWS * TILE_ROWS
    for start, stop, n_tile_rows in ((0, n_large, TILE_ROWS), (n_large, n_tokens, SMALL_TILE_ROWS)):
        with k.loop(start, stop, n_tile_rows) as row:
            x = a.x.offset_bytes(row * layout.stride_bytes)
            with k.loop(first_panel, last_panel) as p:
                at = scratch.offset_bytes((p - first_panel) * (shape.n_weights * shape.unpacked_panel_bytes))
                sums = []
                for i in range(shape.n_weights):
                    accumulators = [k.var(k.const(F32X16, 0.0)) for _ in range(n_tile_rows)]
                    start_of_panel = at.offset_bytes(i * shape.unpacked_panel_bytes)
                    with k.loop(0, shape.n_columns // BLOCK) as block:
                        registers = _load_unpacked(k, shape, start_of_panel, block)
                        _accumulate(k, registers, shape.unpacked_zero, 255, x, layout, block, accumulators)
                    sums.append(accumulators)
                n_left = n_tokens - row if n_tile_rows == SMALL_TILE_ROWS else None
                _finish(k, shape, a, sums, a.y + row * a.n_rows, p, n_left)
    return k.finish()


def _unpack(k: Kernel, shape: MatMulShape, packed: Value, into: Value) -> None:
    """One panel: every 32 columns as f32 scales, f32 offsets, then bytes with `unpacked_zero` as their zero."""
    panel, shift = shape.panel, shape.unpacked_zero - shape.panel.zero
    with k.loop(0, shape.n_columns // panel.unit_columns) as unit:
        at = packed.offset_bytes(unit * panel.unit_bytes)
        header = panel.emit_header(k, at)
        with k.loop(0, panel.n_blocks) as i:
            registers = panel.emit_block(k, at.offset_bytes(i * panel.block_bytes + panel.header_bytes), header)
            out = into.offset_bytes((unit * panel.n_blocks + i) * shape.unpacked_block_bytes)
            for n, number in enumerate((*registers.scales, *registers.offsets)):
                k.store(out.offset_bytes(64 * n).cast(f32), number, align=64)
            start = 64 * len((*registers.scales, *registers.offsets))
            for g, quants in enumerate(registers.quants):
                shifted = quants + shift if shift else quants
                k.store(out.offset_bytes(start + VECTOR_BYTES * g), shifted, align=64)


def _load_unpacked(k: Kernel, shape: MatMulShape, start: Value, block: Value) -> Registers:
    at = start.offset_bytes(block * shape.unpacked_block_bytes)
    n_groups = shape.panel.n_groups
    n_numbers = n_groups * (1 + shape.panel.has_offset)
    numbers = [k.load(at.offset_bytes(64 * n).cast(f32), PANEL_ROWS, align=64) for n in range(n_numbers)]
    quants = tuple(
        k.load(at.offset_bytes(64 * n_numbers + VECTOR_BYTES * g), VECTOR_BYTES, align=64)
        for g in range(GROUPS_OF_FOUR)
    )
    return Registers(quants, tuple(numbers[:n_groups]), tuple(numbers[n_groups:]))


def _accumulate(
    k: Kernel,
    weights: Registers,
    zero: int,
    u_max: int,
    x: Value,
    layout: QuantisedRow,
    block: Value,
    accumulators: Sequence[Var],
) -> None:
    """Adds 32 columns to each token's accumulator: the arithmetic of the module's docstring."""
    n_groups = len(weights.scales)
    n_vectors = GROUPS_OF_FOUR // n_groups
    q = x.offset_bytes(block * BLOCK).cast(i32)
    numbers = x.offset_bytes(block * 4)
    halves = x.offset_bytes(block * 8)
    for m, accumulator in enumerate(accumulators):
        row = m * layout.stride_bytes
        d = k.load(numbers.offset_bytes(row + layout.scales_offset).cast(f32))
        scale_x = k.splat(d, PANEL_ROWS)
        for group in range(n_groups):
            if n_groups == 1:
                total = k.load(numbers.offset_bytes(row + layout.n32_offset).cast(i32)) if zero else None
            else:
                total = k.load(halves.offset_bytes(row + layout.n16_offset + 4 * group).cast(i32))
            s = k.const(I32X16, 0)
            if zero and total is not None:
                # The record holds -128 * sum(q); the shift makes it -zero * sum(q).
                shift = 8 - zero.bit_length()
                s = k.splat(total >> shift if shift else total, PANEL_ROWS)
            for g in range(group * n_vectors, (group + 1) * n_vectors):
                four = k.splat(k.load(q.offset_bytes(row + 4 * g)), PANEL_ROWS).bitcast(vec(i8, VECTOR_BYTES))
                s = k.dot4(s, weights.quants[g], four, u_max=u_max)
            value = k.fma(s.to(f32), weights.scales[group] * scale_x, accumulator.get())
            if weights.offsets:
                if n_groups == 1:
                    sum_x = k.load(numbers.offset_bytes(row + layout.sums_offset).cast(f32))
                else:
                    sum_x = total.to(f32) * (-1.0 / 128) * d  # type: ignore[union-attr]  # two groups: it was loaded
                value = k.fma(weights.offsets[group], k.splat(sum_x, PANEL_ROWS), value)
            accumulator.set(value)


def _finish(
    k: Kernel,
    shape: MatMulShape,
    a: _Arguments,
    sums: Sequence[Sequence[Var]],
    y: Value,
    p: Value,
    n_left: Value | None,
) -> None:
    """Bias or gate, and the stores: of the rows that the weight has, and the tokens that the tile has."""
    first = p * PANEL_ROWS
    mask = k.first_lanes(a.n_rows - first, PANEL_ROWS)
    bias = None if a.bias is None else k.load(a.bias + first, PANEL_ROWS, mask=mask)
    for m in range(len(sums[0])):
        value = sums[0][m].get()
        if bias is not None:
            value = value + bias
        if shape.gate is not None:
            value = activate(k, shape.gate, value) * sums[1][m].get()
        at = y + (a.n_rows * m + first)
        if n_left is None or m == 0:
            k.store(at, value, mask=mask)
        else:
            with k.if_(n_left > m):
                k.store(at, value, mask=mask)
