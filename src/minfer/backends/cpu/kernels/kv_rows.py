"""Rows of the KV cache in their three types: how they are written, and how a page of them is read as f32."""

from __future__ import annotations

from minfer.quants import GGMLType, row_bytes
from minfer.simd import Kernel, Value, f16, f32, i8, i32

_LANES = 8
_BLOCK = 32
_BLOCK_BYTES = 34


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
    halves = [k.load(row + 16 * i, 16) for i in range(2)]
    largest = k.reduce_max(k.maximum(k.abs(halves[0]), k.abs(halves[1])))
    d = largest / 127.0
    inverse = 1.0 / d
    # No inverse where every stored scale rounds to 0.
    inverse = k.select(k.abs(inverse) < float("inf"), inverse, 0.0)
    k.store(to.cast(f16), d.to(f16), align=1)
    for i, half in enumerate(halves):
        scaled = half * k.splat(inverse, 16)
        magnitude = k.abs(scaled)
        whole = k.floor(magnitude)
        # Halves go away from zero.
        rounded = k.select(magnitude - whole >= 0.5, whole + 1.0, whole)
        signed = k.select(scaled < 0.0, -rounded, rounded)
        k.store(to.offset_bytes(2 + 16 * i).cast(i8), signed.round_to(i32).to(i8))


def load_row(k: Kernel, row: Value, to: Value, width: int, ggml_type: GGMLType) -> None:
    """Reads a packed row into f32 [width] at `to`."""
    if ggml_type is GGMLType.Q8_0:
        with k.loop(0, width // _BLOCK) as block:
            at = row.offset_bytes(block * _BLOCK_BYTES)
            d = k.splat(k.load(at.cast(f16), align=1).to(f32), _BLOCK)
            q = k.load(at.offset_bytes(2).cast(i8), _BLOCK).to(i32).to(f32)
            k.store(to + block * _BLOCK, q * d)
        return
    with k.loop(0, width, _LANES) as i:
        mask = k.first_lanes(width - i, _LANES)
        if ggml_type is GGMLType.F16:
            value = k.load(row.cast(f16) + i, _LANES, mask=mask).to(f32)
        else:
            value = k.load(row.cast(f32) + i, _LANES, mask=mask)
        k.store(to + i, value, mask=mask)


def cell_bytes(n_kv_heads: int, width: int, ggml_type: GGMLType) -> int:
    """Bytes of one cell of a region."""
    return n_kv_heads * row_bytes(ggml_type, width)
