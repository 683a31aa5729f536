"""From the blocks of a file to the compact panels of `formats.py`: the same bits in other places.

A *word* is four bytes: what four neighbouring columns of a row have in one place. Panels want the words of 16 rows next
to each other, and want the fields of a byte (nibbles, pairs of bits, single bits) to belong to other columns than the
file does. So words are moved as they are, and fields are exchanged between words by `transpose_fields`.

Arrays of words are uint32 [..., n_panels, n_units, 16 rows]; the axes before these are named where they are made.
Layouts of blocks are described in `quants`, those of units in `formats.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from minfer.backends.cpu.panels import formats
from minfer.backends.cpu.panels.formats import PANEL_ROWS, PanelFormat
from minfer.quants import GGMLType, iq4, k_quants, legacy, mxfp4
from minfer.quants.blocks import split_bits

Units: TypeAlias = NDArray[Any]
"""Units of a panel, structured, [n_panels, n_units]."""
Blocks: TypeAlias = NDArray[Any]
"""Blocks of the file, structured, [rows, n_units]."""
Words: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True)
class CompactPacking:
    """How one tensor type is packed.

    Attributes:
        panel: the format of the panels.
        unit: structured dtype of one unit of a panel.
        block: structured dtype of one block of the file, which has the columns of a unit.
        fill: writes units from blocks.
    """

    panel: PanelFormat
    unit: np.dtype[np.void]
    block: np.dtype[np.void]
    fill: Callable[[Units, Blocks], None]


def transpose_fields(words: Words, n_bits: int) -> Words:
    """In every byte, field j of word f becomes field f of word j.

    Args:
        words: [8 / n_bits, ...]
        n_bits: the size of a field: 1, 2 or 4.

    Source: the bit matrix transposition of Warren, Hacker's Delight, 7-3: exchange the off-diagonal quarters, then
    the same within each quarter.
    """
    words = words.copy(order="C")
    distance = len(words) // 2
    while distance:
        shift = distance * n_bits
        mask = 0xFFFFFFFF // ((1 << shift) + 1)  # the lower `shift` bits of every 2 * shift
        pairs = words.reshape(-1, 2, distance, *words.shape[1:])
        first, second = pairs[:, 0], pairs[:, 1]
        exchanged = ((first >> shift) ^ second) & mask
        second ^= exchanged
        first ^= exchanged << shift
        distance //= 2
    return words


def _words(field: NDArray[np.uint8]) -> Words:
    """The bytes of a field of all blocks, [rows, n_units, n_bytes], as words [n_bytes / 4, n_panels, n_units, 16]."""
    words = field.view("<u4")
    return words.reshape(-1, PANEL_ROWS, *words.shape[1:]).transpose(3, 0, 2, 1)


def _by_panel(numbers: NDArray[Any]) -> NDArray[Any]:
    """[rows, n_units, ...] to [n_panels, n_units, ..., 16]."""
    return np.moveaxis(numbers.reshape(-1, PANEL_ROWS, *numbers.shape[1:]), 1, -1)


# The classic formats, and the 4-bit ones with their blocks: the file's nibbles are the panel's.


def _fill_classic(units: Units, blocks: Blocks) -> None:
    for name in ("d", "m", "e"):
        if name in (units.dtype.names or ()):
            units[name] = _by_panel(blocks[name])
    units["low"] = _words(blocks["qs"]).transpose(1, 2, 0, 3)
    if "fifth" in (units.dtype.names or ()):
        units["fifth"] = _by_panel(_fifth_bits(blocks["qh"]))


def _fill_q8_0(units: Units, blocks: Blocks) -> None:
    units["d"] = _by_panel(blocks["d"])
    units["bytes"] = _words(blocks["qs"]).transpose(1, 2, 0, 3)
    units["bytes"] ^= 0x80808080  # q + 128


def _fifth_bits(qh: NDArray[np.uint8]) -> Words:
    """Bit 4g + j of 32 (..., 4 bytes) becomes bit g of byte j of a word."""
    table = _spread_bits()
    words: Words = table[qh[..., 0]]
    for index in range(1, 4):
        words |= table[qh[..., index]] << (2 * index)
    return words


@cache
def _spread_bits() -> Words:
    """For each byte a word: bit j of the byte is bit 0 of the word's byte j, and bit 4 + j is bit 1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    words = (bits[:, :4] | (bits[:, 4:] << np.uint8(1))).view("<u4")[:, 0]
    words.setflags(write=False)
    return words


# The K family: 8 blocks of 32 columns a unit.


def _fill_q2_k(units: Units, blocks: Blocks) -> None:
    for name in ("d", "dmin"):
        units[name] = _by_panel(blocks[name])
    units["blocks"]["scale"] = _by_panel(blocks["scales"].reshape(*blocks.shape, 8, 2))
    _store_pairs(units["blocks"]["pairs"], blocks["qs"])


def _fill_q3_k(units: Units, blocks: Blocks) -> None:
    units["d"] = _by_panel(blocks["d"])
    packed = blocks["scales"]
    low = split_bits(packed[..., :8], 4).reshape(*blocks.shape, 8, 2)
    high = split_bits(packed[..., 8:], 2).reshape(*blocks.shape, 8, 2)
    scales = (low | (high << np.uint8(4))).view(np.int8) - np.int8(32)
    units["blocks"]["scale"] = _by_panel(scales)
    _store_bits(units["blocks"]["third"], blocks["hmask"])
    _store_pairs(units["blocks"]["pairs"], blocks["qs"])


def _fill_q4_k(units: Units, blocks: Blocks) -> None:
    """Q4_K and Q5_K."""
    for name in ("d", "dmin"):
        units[name] = _by_panel(blocks[name])
    scales, minima = k_quants.scales_and_minima(blocks["scales"])
    units["blocks"]["scale"] = _by_panel(scales)
    units["blocks"]["minimum"] = _by_panel(minima)
    # Words [4 pairs of blocks][half of the columns][4 groups]; the low nibbles are the first block of a pair.
    words = _words(blocks["qs"])
    halves = np.moveaxis(words.reshape(4, 2, 4, *words.shape[1:]), 1, 0)
    low = units["blocks"]["low"]
    low.reshape(*units.shape, 4, 2, 4, PANEL_ROWS)[...] = transpose_fields(halves, 4).transpose(3, 4, 1, 0, 2, 5)
    if "qh" in (blocks.dtype.names or ()):
        _store_bits(units["blocks"]["fifth"], blocks["qh"])


def _fill_q6_k(units: Units, blocks: Blocks) -> None:
    units["d"] = _by_panel(blocks["d"])
    units["blocks"]["scale"] = _by_panel(blocks["scales"].reshape(*blocks.shape, 8, 2))
    _store_pairs(units["blocks"]["pairs"], blocks["qh"])
    # Words [2 halves of the block][2 quarters][half of the columns][4 groups]; the high nibbles are two quarters on.
    words = _words(blocks["ql"])
    halves = np.moveaxis(words.reshape(2, 2, 2, 4, *words.shape[1:]), 2, 0)
    low = units["blocks"]["low"].reshape(*units.shape, 2, 2, 2, 4, PANEL_ROWS)
    low[...] = transpose_fields(halves, 4).transpose(4, 5, 1, 0, 2, 3, 6)


def _fill_iq4_xs(units: Units, blocks: Blocks) -> None:
    units["d"] = _by_panel(blocks["d"])
    low = split_bits(blocks["scales_l"][..., None], 4).reshape(*blocks.shape, 8)
    high = (blocks["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scales = (low | (high.astype(np.uint8) << np.uint8(4))).view(np.int8) - np.int8(32)
    units["blocks"]["scale"] = _by_panel(scales)
    words = _words(blocks["qs"])
    units["blocks"]["low"] = words.reshape(8, 4, *words.shape[1:]).transpose(2, 3, 0, 1, 4)


def _store_bits(target: NDArray[Any], field: NDArray[np.uint8]) -> None:
    """Words [8 groups], whose bit b belongs to block b, to [8 blocks] with bit g for group g."""
    target[...] = transpose_fields(_words(field), 1).transpose(1, 2, 0, 3)


def _store_pairs(target: NDArray[Any], field: NDArray[np.uint8]) -> None:
    """Words [2 halves of the block][2 vectors][4 groups], whose field j belongs to the half's quarter j, to
    [2 halves][4 quarters][2 vectors] with a field for each group."""
    words = _words(field)
    groups = np.moveaxis(words.reshape(2, 2, 4, *words.shape[1:]), 2, 0)
    quarters = target.reshape(*target.shape[:2], 2, 4, 2, PANEL_ROWS)
    quarters[...] = transpose_fields(groups, 2).transpose(3, 4, 1, 0, 2, 5)


# Layouts of units, in the order of `formats.py`.

_HALVES = "<f2", PANEL_ROWS
_BYTES = "u1", PANEL_ROWS
_LOW = ("low", "<u4", (4, PANEL_ROWS))
_PAIRS = ("pairs", "<u4", (2, PANEL_ROWS))


def _layout(*fields: tuple[Any, ...], blocks: tuple[tuple[Any, ...], ...] = ()) -> np.dtype[np.void]:
    """A unit: its fields, then those of 8 blocks."""
    return np.dtype([*fields, ("blocks", np.dtype([*blocks]), 8)] if blocks else [*fields])


_D, _M, _DMIN = ("d", *_HALVES), ("m", *_HALVES), ("dmin", *_HALVES)
_FIFTH = ("fifth", "<u4", PANEL_ROWS)
_SCALE, _MINIMUM = ("scale", *_BYTES), ("minimum", *_BYTES)
_TWO_SCALES = ("scale", "i1", (2, PANEL_ROWS))

COMPACT: Final[Mapping[GGMLType, CompactPacking]] = MappingProxyType(
    {
        GGMLType.Q4_0: CompactPacking(formats.Q4_0, _layout(_D, _LOW), legacy.Q4_0, _fill_classic),
        GGMLType.Q4_1: CompactPacking(formats.Q4_1, _layout(_D, _M, _LOW), legacy.Q4_1, _fill_classic),
        GGMLType.Q5_0: CompactPacking(formats.Q5_0, _layout(_D, _FIFTH, _LOW), legacy.Q5_0, _fill_classic),
        GGMLType.Q5_1: CompactPacking(formats.Q5_1, _layout(_D, _M, _FIFTH, _LOW), legacy.Q5_1, _fill_classic),
        GGMLType.Q8_0: CompactPacking(
            formats.Q8_0, _layout(_D, ("bytes", "<u4", (8, PANEL_ROWS))), legacy.Q8_0, _fill_q8_0
        ),
        GGMLType.IQ4_NL: CompactPacking(formats.IQ4_NL, _layout(_D, _LOW), iq4.IQ4_NL, _fill_classic),
        GGMLType.MXFP4: CompactPacking(formats.MXFP4, _layout(("e", *_BYTES), _LOW), mxfp4.MXFP4, _fill_classic),
        GGMLType.Q2_K: CompactPacking(
            formats.Q2_K,
            _layout(_D, _DMIN, blocks=(("scale", "u1", (2, PANEL_ROWS)), _PAIRS)),
            k_quants.Q2_K,
            _fill_q2_k,
        ),
        GGMLType.Q3_K: CompactPacking(
            formats.Q3_K,
            _layout(_D, blocks=(_TWO_SCALES, ("third", "<u4", PANEL_ROWS), _PAIRS)),
            k_quants.Q3_K,
            _fill_q3_k,
        ),
        GGMLType.Q4_K: CompactPacking(
            formats.Q4_K, _layout(_D, _DMIN, blocks=(_SCALE, _MINIMUM, _LOW)), k_quants.Q4_K, _fill_q4_k
        ),
        GGMLType.Q5_K: CompactPacking(
            formats.Q5_K, _layout(_D, _DMIN, blocks=(_SCALE, _MINIMUM, _FIFTH, _LOW)), k_quants.Q5_K, _fill_q4_k
        ),
        GGMLType.Q6_K: CompactPacking(
            formats.Q6_K, _layout(_D, blocks=(_TWO_SCALES, _PAIRS, _LOW)), k_quants.Q6_K, _fill_q6_k
        ),
        GGMLType.IQ4_XS: CompactPacking(
            formats.IQ4_XS, _layout(_D, blocks=(("scale", "i1", PANEL_ROWS), _LOW)), iq4.IQ4_XS, _fill_iq4_xs
        ),
    }
)
"""The types that have a panel of their own; all others go to a wide one."""
