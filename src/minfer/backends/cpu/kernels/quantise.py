"""Activation quantisation: rows f32 [n, width] to records (`backends/cpu/activations.py`, which is the definition).

Argument block: 0 x f32 [n, width], 1 records. One row a chunk. Bound by latency of the reductions, three a block.
"""

from __future__ import annotations

from minfer.backends.cpu.activations import QuantisedRow
from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.simd import Kernel, KernelIR, Value, f32, i8, i32, u8, vec

ROWS_PER_CHUNK = 4
_HALF = 16


def trace_quantise(width: int, rows: StepWord) -> KernelIR:
    """The kernel for rows of `width` values, a multiple of 32."""
    layout = QuantisedRow(width)
    k, args, step, chunk = tape_kernel(f"quantise_w{width}_r{int(rows)}")
    x, records = argument_pointer(k, args, 0, f32), argument_pointer(k, args, 1, u8)
    first = chunk * ROWS_PER_CHUNK
    with k.loop(first, k.minimum(first + ROWS_PER_CHUNK, step_count(k, step, rows))) as row:
        quantise_row(k, x + row * width, records.offset_bytes(row * layout.stride_bytes), layout)
    return k.finish()


def quantise_row(k: Kernel, x: Value, record: Value, layout: QuantisedRow) -> None:
    """Traces the quantisation of one row."""
    with k.loop(0, layout.n_blocks) as block:
        halves = [k.load(x + block * (2 * _HALF) + _HALF * i, _HALF) for i in range(2)]
        # As integers, magnitudes order as they do as floats, with NaN above all.
        bits = [h.bitcast(vec(i32, _HALF)) & 0x7FFFFFFF for h in halves]
        largest = k.reduce_max(k.maximum(bits[0], bits[1])).bitcast(f32)
        d = largest / 127.0
        factor = k.splat(127.0 / largest, _HALF)
        sums = []
        for i, half in enumerate(halves):
            scaled = half * factor
            finite = k.abs(scaled) < float("inf")
            q = k.select(finite, scaled, 0.0).round_to(i32)
            k.store(record.offset_bytes(block * (2 * _HALF) + _HALF * i).cast(i8), q.to(i8))
            total = k.reduce_sum(q)
            k.store(record.offset_bytes(block * 8 + layout.n16_offset + 4 * i).cast(i32), total * -128)
            sums.append(total)
        both = sums[0] + sums[1]
        at = record.offset_bytes(block * 4)
        k.store(at.offset_bytes(layout.scales_offset).cast(f32), d)
        k.store(at.offset_bytes(layout.sums_offset).cast(f32), both.to(f32) * d)
        k.store(at.offset_bytes(layout.n32_offset).cast(i32), both * -128)
    return
