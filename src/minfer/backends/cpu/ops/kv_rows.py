"""Rows of the KV cache in their three types: how they are written, and how a page of them is read as f32.

Source: q8_0 is ggml's type of that name.
"""

from __future__ import annotations

from minfer.quants import GGMLType, row_bytes
from minfer.simd import Kernel, Value, f16, f32, i8, i32, vec

_LANES = 8
_BLOCK = 32
_BLOCK_BYTES = 34
_HALF = 16
# The float below 0.5. Adding it and truncating is rounding halves away from zero, for magnitudes below 2**23: 0.5 would
# also lift the float below it to 1.
_BELOW_HALF = 0.49999997


def store_row(k: Kernel, row: Value, to: Value, width: int, ggml_type: GGMLType) -> None:
    """Writes `width` f32 at `row` to the bytes at `to`, as the definition in `quants` does, to the bit."""
    if ggml_type is GGMLType.Q8_0:
        with k.loop(0, width // _BLOCK) as block:
            _store_q8_0(k, row + block * _BLOCK, to.offset_bytes(block * _BLOCK_BYTES))
        return
    with k.loop(0, width, _LANES) as i:
        mask = k.first_lanes(width - i, _LANES)
        value = k.load(row + i, _LANES, mask=mask)
        if ggml_type is GGMLType.F16:
            k.store(to.cast(f16) + i, value.to(f16), mask=mask)
        else:
            k.store(to.cast(f32) + i, value, mask=mask)


def _store_q8_0(k: Kernel, row: Value, to: Value) -> None:
    """One block. A block that holds NaN or an infinity gets such a d and q = 0, so that what is read back is NaN."""
    halves = [k.load(row + _HALF * i, _HALF) for i in range(2)]
    # As integers, magnitudes order as they do as floats, with NaN above all.
    bits = [half.bitcast(vec(i32, _HALF)) & 0x7FFFFFFF for half in halves]
    d = k.reduce_max(k.maximum(*bits)).bitcast(f32) / 127.0
    inverse = k.splat(1.0 / d, _HALF)
    k.store(to.cast(f16), d.to(f16), align=1)
    for i, half in enumerate(halves):
        # Halves go away from zero. Where the product is not finite, the integer is -2**31, and its byte 0.
        magnitude = (k.abs(half) * inverse + _BELOW_HALF).trunc_to(i32)
        k.store(to.offset_bytes(2 + _HALF * i).cast(i8), k.select(half < 0.0, -magnitude, magnitude).to(i8))


def load_row(k: Kernel, row: Value, to: Value, width: int, ggml_type: GGMLType) -> None:
    """Reads a packed row into f32 [width] at `to`."""
    lanes = _BLOCK if ggml_type is GGMLType.Q8_0 else _LANES
    n_whole = width // lanes * lanes
    with k.loop(0, n_whole, lanes) as d:
        k.store(to + d, load_values(k, row, d, lanes, ggml_type))
    if n_whole < width:
        mask = k.first_lanes(width - n_whole, lanes)
        k.store(to + n_whole, load_values(k, row, n_whole, lanes, ggml_type, mask), mask=mask)


def load_values(
    k: Kernel, row: Value, d: Value | int, lanes: int, ggml_type: GGMLType, mask: Value | None = None
) -> Value:
    """The values d, d + 1, ... of a packed row as f32; of q8_0, no more than lie in one block."""
    match ggml_type:
        case GGMLType.F32:
            return k.load(row.cast(f32) + d, lanes, mask=mask)
        case GGMLType.F16:
            return k.load(row.cast(f16) + d, lanes, mask=mask).to(f32)
        case _:
            block = row.offset_bytes(d // _BLOCK * _BLOCK_BYTES)
            scale = k.splat(k.load(block.cast(f16), align=1).to(f32), lanes)
            return k.load(block.offset_bytes(d % _BLOCK + 2).cast(i8), lanes, mask=mask).to(i32).to(f32) * scale


def cell_bytes(n_kv_heads: int, width: int, ggml_type: GGMLType) -> int:
    """Bytes of one cell of a region."""
    return n_kv_heads * row_bytes(ggml_type, width)
