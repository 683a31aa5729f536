"""Panels hold exactly what the file holds: an unpacker written from the layouts in `panels/formats.py` gives the same
values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import same_bits
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.panels.pack import pack, packable_types, packed_bytes, panel_format
from minfer.backends.cpu.panels.pack_compact import transpose_fields
from minfer.quants import GGMLType, block_geometry, dequantise
from packed_rows import random_rows

CLASSIC = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
COMPACT = (*CLASSIC, "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MXFP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def halves(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return data.copy().view("<f2").astype(np.float32)


def dot4(vectors: NDArray[np.uint8]) -> NDArray[np.float32]:
    """8 vectors of 64 bytes [group][row][4] to [16 rows][32 columns]."""
    return vectors.reshape(8, 16, 4).transpose(1, 0, 2).reshape(16, 32).astype(np.float32)


def nibbles(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    vectors = data.reshape(4, 64)
    return np.concatenate([vectors & 15, vectors >> 4])


def bit(data: NDArray[np.uint8], shift_to: int) -> NDArray[np.uint8]:
    return np.stack([((data >> g) & 1) << shift_to for g in range(8)])


def two_bits(data: NDArray[np.uint8], shift_to: int) -> NDArray[np.uint8]:
    return np.stack([((data[64 * (g // 4) :][:64] >> (2 * (g % 4))) & 3) << shift_to for g in range(8)])


def scaled(scales: NDArray[np.float32], u: NDArray[np.float32]) -> NDArray[np.float32]:
    """A scale for 16 columns: [2 groups][16 rows] times [16 rows][32 columns]."""
    return np.repeat(scales.T, 16, axis=1) * u


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
            return halves(unit[:32])[:, None] * (dot4(nibbles(unit[96:]) | bit(unit[32:96], 4)) - 16)
        case "Q5_1":
            u = dot4(nibbles(unit[128:]) | bit(unit[64:128], 4))
            return halves(unit[:32])[:, None] * u + halves(unit[32:64])[:, None]
        case "Q4_K" | "Q5_K":
            d, dmin, blocks = halves(unit[:32]), halves(unit[32:64]), np.split(unit[64:], 8)
            start = 32 if name == "Q4_K" else 96
            columns = []
            for block in blocks:
                u = nibbles(block[start:]) | (bit(block[32:96], 4) if name == "Q5_K" else 0)
                scale, minimum = block[:16].astype(np.float32), block[16:32].astype(np.float32)
                columns.append((d * scale)[:, None] * dot4(u) + (dmin * -minimum)[:, None])
            return np.concatenate(columns, axis=1)
        case "IQ4_NL":
            return halves(unit[:32])[:, None] * IQ4_LEVELS[dot4(nibbles(unit[32:])).astype(int)]
        case "MXFP4":
            exponents = unit[:16].astype(int)[:, None] - 128
            return np.ldexp(MXFP4_LEVELS[dot4(nibbles(unit[16:])).astype(int)], exponents)
        case "Q2_K":
            d, dmin, columns = halves(unit[:32]), halves(unit[32:64]), []
            for block in np.split(unit[64:], 8):
                packed = block[:32].reshape(2, 16)
                offsets = dmin * -(packed >> 4).astype(np.float32)
                values = scaled(d * (packed & 15), dot4(two_bits(block[32:], 0)))
                columns.append(values + np.repeat(offsets.T, 16, axis=1))
            return np.concatenate(columns, axis=1)
        case "Q3_K":
            d, columns = halves(unit[:32]), []
            for block in np.split(unit[32:], 8):
                u = dot4(two_bits(block[96:], 0) | bit(block[32:96], 2))
                columns.append(scaled(d * block[:32].view(np.int8).reshape(2, 16), u - 4))
            return np.concatenate(columns, axis=1)
        case "Q6_K":
            d, columns = halves(unit[:32]), []
            for block in np.split(unit[32:], 8):
                u = dot4(nibbles(block[160:]) | two_bits(block[32:160], 4))
                columns.append(scaled(d * block[:32].view(np.int8).reshape(2, 16), u - 32))
            return np.concatenate(columns, axis=1)
        case "IQ4_XS":
            d, columns = halves(unit[:32]), []
            for block in np.split(unit[32:], 8):
                levels = IQ4_LEVELS[dot4(nibbles(block[16:])).astype(int)]
                columns.append((d * block[:16].view(np.int8))[:, None] * levels)
            return np.concatenate(columns, axis=1)
    raise AssertionError(name)


def unpack_wide(unit: NDArray[np.uint8], n_groups: int) -> NDArray[np.float32]:
    scales = unit[: 64 * n_groups].copy().view("<f4").reshape(n_groups, 16)
    return np.repeat(scales.T, 32 // n_groups, axis=1) * (dot4(unit[64 * n_groups :]) - 128)


def unpack(ggml_type: GGMLType, packed: NDArray[np.uint8], n_rows: int, n_columns: int) -> NDArray[np.float32]:
    panel = panel_format(ggml_type)
    units = packed.reshape(-1, n_columns // panel.unit_columns, panel.unit_bytes)
    rows = []
    for units_of_panel in units:
        if ggml_type.name in COMPACT:
            parts = [unpack_unit(ggml_type.name, unit) for unit in units_of_panel]
        else:
            parts = [unpack_wide(unit, panel.n_groups) for unit in units_of_panel]
        rows.append(np.concatenate(parts, axis=1))
    whole = np.concatenate(rows)
    assert (whole[n_rows:] == 0).all(), "the rows that fill up the last panel are not zero"
    return whole[:n_rows]


@pytest.mark.parametrize("n_rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("ggml_type", packable_types(), ids=lambda t: t.name)
def test_unpacking_what_was_packed_gives_the_same_bits(ggml_type: GGMLType, n_rows: int) -> None:
    n_columns = 3 * max(32, block_geometry(ggml_type).n_values)
    rows = random_rows(ggml_type, n_rows, n_columns, seed=n_rows)
    packed = aligned_zeros(packed_bytes(ggml_type, n_rows, n_columns))
    pack(ggml_type, rows, n_columns, packed)
    got, want = unpack(ggml_type, packed, n_rows, n_columns), dequantise(ggml_type, rows, n_columns)
    assert same_bits(got, want), np.argwhere(got != want)[:5]


@pytest.mark.parametrize("n_bits", [1, 2, 4])
def test_fields_are_transposed_as_defined(n_bits: int) -> None:
    n = 8 // n_bits
    words = np.random.default_rng(n).integers(0, 1 << 32, (n, 3, 5), dtype=np.uint32)
    fields = np.stack([words.view(np.uint8) >> (n_bits * j) & ((1 << n_bits) - 1) for j in range(n)])
    want = sum(fields[:, f] << (n_bits * f) for f in range(n))
    assert same_bits(transpose_fields(words, n_bits).view(np.uint8), np.asarray(want, np.uint8))


@pytest.mark.parametrize("ggml_type", [GGMLType[name] for name in COMPACT], ids=lambda t: t.name)
def test_compact_panels_take_little_more_than_the_file(ggml_type: GGMLType) -> None:
    geometry = block_geometry(ggml_type)
    assert packed_bytes(ggml_type, 16, 256) <= 16 * 256 // geometry.n_values * geometry.n_bytes * 1.04


def test_a_large_weight_is_packed_in_pieces_without_a_seam() -> None:
    rows = random_rows(GGMLType.Q4_1, 700, 1024)
    whole = aligned_zeros(packed_bytes(GGMLType.Q4_1, 700, 1024))
    pack(GGMLType.Q4_1, rows, 1024, whole)
    for start in range(0, 700, 112):
        part = aligned_zeros(packed_bytes(GGMLType.Q4_1, len(rows[start : start + 112]), 1024))
        pack(GGMLType.Q4_1, rows[start : start + 112], 1024, part)
        first = start // 16 * panel_format(GGMLType.Q4_1).panel_bytes(1024)
        np.testing.assert_array_equal(whole[first : first + part.size], part)
