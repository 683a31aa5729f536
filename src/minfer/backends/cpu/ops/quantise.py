"""Activation quantisation: rows f32 [n, width] to records (`backends/cpu/activations.py`, which is the definition).

Argument block: 0 x f32 [n, width], 1 records. `ROWS_PER_CHUNK` rows a chunk. x must not overlap the records.

Numerics: the bits of the definition on every target. Maxima are taken of the magnitudes' bits as integers and sums are
integers, so that the order of neither matters.

Eight blocks at a time: their maxima, and later the sums of their halves, come out of one tree of shuffles, in which
all lanes are busy until the end; a tree for each block would be three chains of latency. Bound by those shuffles and
by narrowing to bytes: some 0.4 cycles a value where x is in the first cache, on AVX-512 and on AVX2. Source: ggml's
Q8_1 blocks, with scales in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minfer.backends.cpu.activations import BLOCK_VALUES, QuantisedRow
from minfer.backends.cpu.convention import StepWord, argument_pointer, step_count, tape_kernel
from minfer.backends.cpu.emission import Emission, rows_of
from minfer.graph import ValueId
from minfer.simd import Kernel, KernelIR, Value, f32, i8, i32, i64, u8, vec

ROWS_PER_CHUNK = 4
_LANES = 16
_HALVES = BLOCK_VALUES // _LANES
_GROUP_BLOCKS = 8
_MAGNITUDE_BITS = 0x7FFFFFFF
# -128 * sum as a shift: what is no number in q's integer, -2**31, leaves it with nothing, as it leaves the byte.
_LOG2_128 = 7


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
    n_grouped = layout.n_blocks // _GROUP_BLOCKS * _GROUP_BLOCKS
    with k.loop(0, n_grouped, _GROUP_BLOCKS) as block:
        _quantise_blocks(k, x, record, layout, block, _GROUP_BLOCKS)
    done, n_blocks = n_grouped, _GROUP_BLOCKS // 2
    while n_blocks:
        if layout.n_blocks & n_blocks:
            _quantise_blocks(k, x, record, layout, k.const(i64, done), n_blocks)
            done += n_blocks
        n_blocks //= 2


def _quantise_blocks(k: Kernel, x: Value, record: Value, layout: QuantisedRow, block: Value, n_blocks: int) -> None:
    """`n_blocks` blocks from `block` on; a power of two, at most 8. x is read twice rather than kept in registers."""
    start = x + block * BLOCK_VALUES
    largest, owners = _fold(k, [_largest_of_pairs(k, start + i * BLOCK_VALUES) for i in range(n_blocks)], k.maximum)
    lane_of_block = [owners.index(i) for i in range(n_blocks)]
    largest = largest.bitcast(vec(f32, _LANES))
    d, factor = k.shuffle(largest / 127.0, lane_of_block), 127.0 / largest

    q = record.offset_bytes(block * BLOCK_VALUES).cast(i8)
    halves = []
    for i in range(_HALVES * n_blocks):
        # Where the product is not finite, the integer is -2**31, and its byte 0.
        scaled = k.load(start + i * _LANES, _LANES) * k.shuffle(factor, [lane_of_block[i // _HALVES]] * _LANES)
        integers = scaled.round_to(i32)
        k.store(q + i * _LANES, integers.to(i8))
        halves.append(integers)
    sums, owners = _fold(k, halves, lambda a, b: a + b)
    n16 = k.shuffle(-(sums << _LOG2_128), [owners.index(i) for i in range(len(halves))])
    n32 = k.shuffle(n16, range(0, n16.lanes, 2)) + k.shuffle(n16, range(1, n16.lanes, 2))

    at = record.offset_bytes(block * 4)
    k.store(at.offset_bytes(layout.scales_offset).cast(f32), d)
    k.store(at.offset_bytes(layout.sums_offset).cast(f32), (-n32 >> _LOG2_128).to(f32) * d)
    k.store(at.offset_bytes(layout.n32_offset).cast(i32), n32)
    k.store(record.offset_bytes(block * 8 + layout.n16_offset).cast(i32), n16)


def _largest_of_pairs(k: Kernel, at: Value) -> Value:
    """The larger magnitude of values 0 and 16, 1 and 17, ... of a block, as bits: they order as the magnitudes do."""
    halves = [k.load(at + i * _LANES, _LANES).bitcast(vec(i32, _LANES)) for i in range(_HALVES)]
    return k.maximum(*(half & _MAGNITUDE_BITS for half in halves))


def _fold(k: Kernel, rows: Sequence[Value], op: Callable[[Value, Value], Value]) -> tuple[Value, list[int]]:
    """Reduces the lanes of each of 1, 2, 4, 8 or 16 vectors of 16 lanes; `op` must be free of order.

    A vector whose every lane has the result of one of them, and for each lane the number of that one. Two vectors
    at a time become one whose lanes stand for either in equal shares; each step is two shuffles, which pick whole
    quarters of a register or stay within them, as the instructions do.
    """
    folded = [(row, [i] * _LANES) for i, row in enumerate(rows)]
    share = _LANES
    while len(folded) > 1:
        share //= 2
        low = _low_halves(share)
        high = [lane + share for lane in low]
        pairs = zip(folded[::2], folded[1::2], strict=True)
        folded = [
            (op(k.shuffle(a, low, b), k.shuffle(a, high, b)), [(*of_a, *of_b)[lane] for lane in low])
            for (a, of_a), (b, of_b) in pairs
        ]
    ((result, owners),) = folded
    while share > 1:
        share //= 2
        result = op(result, k.shuffle(result, [lane ^ share for lane in range(_LANES)]))
    return result, owners


def _low_halves(share: int) -> list[int]:
    """The lanes of the lower halves of runs of `2 * share` lanes, of a vector and of the one that follows it."""
    lows = [lane for lane in range(_LANES) if not lane & share]
    if share >= 4:
        return [*lows, *(_LANES + lane for lane in lows)]
    quarters = [lows[i : i + 2] for i in range(0, len(lows), 2)]
    return [lane for quarter in quarters for lane in (*quarter, *(_LANES + lane for lane in quarter))]


def records_of(e: Emission, x: ValueId) -> int:
    """Where the records of a value are; adds the entry that makes them, unless they are there already."""
    spec = e.spec(x)
    width, rows = spec.n_static_values(), rows_of(spec)
    records = e.record_buffer(width)
    if not e.is_recorded(x):
        kernel = e.tape.kernel(trace_quantise, width, rows)
        e.tape.add(kernel, (e.address(x), records), rows=rows, rows_per_chunk=ROWS_PER_CHUNK)
        e.set_recorded(x)
    return records
