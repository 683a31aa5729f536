"""Panels hold exactly what the file holds: an unpacker written from the layouts in `panels.py` gives the same
values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.pack import pack, packable_types, packed_bytes, panel_format
from minfer.quants import GGMLType, block_geometry, dequantise

COMPACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def random_rows(ggml_type: GGMLType, n_rows: int, n_columns: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows of random valid blocks: random bytes, with every float16 in them made finite and moderate."""
    geometry = block_geometry(ggml_type)
    rng = np.random.default_rng(seed)
    n_bytes = n_columns // geometry.n_values * geometry.n_bytes
    while True:
        rows = rng.integers(0, 256, (n_rows, n_bytes), dtype=np.uint8)
        for _ in range(200):
            bad = ~(np.abs(dequantise(ggml_type, rows, n_columns)) < 1e30).all(axis=1)
            if not bad.any():
                return rows
            rows[bad] = rng.integers(0, 256, (int(bad.sum()), n_bytes), dtype=np.uint8)
        rows = rows[:0]


def halves(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return data.copy().view("<f2").astype(np.float32)


def dot4(vectors: NDArray[np.uint8]) -> NDArray[np.float32]:
    """8 vectors of 64 bytes [group][row][4] to [16 rows][32 columns]."""
    return vectors.reshape(8, 16, 4).transpose(1, 0, 2).reshape(16, 32).astype(np.float32)


def nibbles(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    vectors = data.reshape(4, 64)
    return np.concatenate([vectors & 15, vectors >> 4])


def fifth(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack([((data >> g) & 1) << 4 for g in range(8)])


def unpack_unit(name: str, unit: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One unit of a compact panel to [16 rows][columns], byte by byte as the docstrings say."""
    match name:
        case "Q8_0":
            return halves(unit[:32])[:, None] * (dot4(unit[32:]) - 128)
        case "Q4_0":
            return halves(unit[:32])[:, None] * (dot4(nibbles(unit[32:])) - 8)
        case "Q4_1":
            return halves(unit[:32])[:, None] * dot4(nibbles(unit[64:])) + halves(unit[32:64])[:, None]
        case "Q5_0":
            return halves(unit[:32])[:, None] * (dot4(nibbles(unit[96:]) | fifth(unit[32:96])) - 16)
        case "Q5_1":
            u = dot4(nibbles(unit[128:]) | fifth(unit[64:128]))
            return halves(unit[:32])[:, None] * u + halves(unit[32:64])[:, None]
        case "Q4_K" | "Q5_K":
            d, dmin, blocks = halves(unit[:32]), halves(unit[32:64]), np.split(unit[64:], 8)
            start = 32 if name == "Q4_K" else 96
            columns = []
            for block in blocks:
                u = nibbles(block[start:]) | (fifth(block[32:96]) if name == "Q5_K" else 0)
                scale, minimum = block[:16].astype(np.float32), block[16:32].astype(np.float32)
                columns.append((d * scale)[:, None] * dot4(u) + (dmin * -minimum)[:, None])
            return np.concatenate(columns, axis=1)
        case "Q6_K":
            d, columns = halves(unit[:32]), []
            for block in np.split(unit[32:], 8):
                scales = block[:32].view(np.int8).reshape(2, 16).astype(np.float32)
                high = np.stack([((block[32 + 64 * (g // 4) :][:64] >> (2 * (g % 4))) & 3) << 4 for g in range(8)])
                u = dot4(nibbles(block[160:]) | high) - 32
                columns += [(d * scales[half])[:, None] * u[:, 16 * half : 16 * half + 16] for half in range(2)]
            return np.concatenate(columns, axis=1)
    raise AssertionError(name)


def unpack_wide(unit: NDArray[np.uint8], n_groups: int, has_offset: bool) -> NDArray[np.float32]:
    numbers = unit[: 64 * n_groups * (1 + has_offset)].copy().view("<f4").reshape(-1, 16)
    q = dot4(unit[numbers.nbytes :]) - 128
    width = 32 // n_groups
    columns = []
    for g in range(n_groups):
        part = numbers[g][:, None] * q[:, g * width : (g + 1) * width]
        columns.append(part + numbers[n_groups + g][:, None] if has_offset else part)
    return np.concatenate(columns, axis=1)


def unpack(ggml_type: GGMLType, packed: NDArray[np.uint8], n_rows: int, n_columns: int) -> NDArray[np.float32]:
    panel = panel_format(ggml_type)
    units = packed.reshape(-1, n_columns // panel.unit_columns, panel.unit_bytes)
    rows = []
    for units_of_panel in units:
        if ggml_type.name in COMPACT:
            parts = [unpack_unit(ggml_type.name, unit) for unit in units_of_panel]
        else:
            parts = [unpack_wide(unit, panel.n_groups, panel.has_offset) for unit in units_of_panel]
        rows.append(np.concatenate(parts, axis=1))
    whole = np.concatenate(rows)
    assert (whole[n_rows:] == 0).all() or ggml_type.name not in COMPACT
    return whole[:n_rows]


@pytest.mark.parametrize("n_rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("ggml_type", packable_types(), ids=lambda t: t.name)
def test_unpacking_what_was_packed_gives_the_same_bits(ggml_type: GGMLType, n_rows: int) -> None:
    n_columns = 3 * max(32, block_geometry(ggml_type).n_values)
    rows = random_rows(ggml_type, n_rows, n_columns, seed=n_rows)
    packed = aligned_zeros(packed_bytes(ggml_type, n_rows, n_columns))
    pack(ggml_type, rows, n_columns, packed)
    got, want = unpack(ggml_type, packed, n_rows, n_columns), dequantise(ggml_type, rows, n_columns)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("ggml_type", [GGMLType[name] for name in COMPACT], ids=lambda t: t.name)
def test_compact_panels_take_little_more_than_the_file(ggml_type: GGMLType) -> None:
    geometry = block_geometry(ggml_type)
    assert packed_bytes(ggml_type, 16, 256) <= 16 * 256 // geometry.n_values * geometry.n_bytes * 1.03


def test_a_large_weight_is_packed_in_pieces_without_a_seam() -> None:
    rows = random_rows(GGMLType.Q4_1, 700, 1024)
    whole = aligned_zeros(packed_bytes(GGMLType.Q4_1, 700, 1024))
    pack(GGMLType.Q4_1, rows, 1024, whole)
    for start in range(0, 700, 112):
        part = aligned_zeros(packed_bytes(GGMLType.Q4_1, len(rows[start : start + 112]), 1024))
        pack(GGMLType.Q4_1, rows[start : start + 112], 1024, part)
        first = start // 16 * panel_format(GGMLType.Q4_1).panel_bytes(1024)
        np.testing.assert_array_equal(whole[first : first + part.size], part)
