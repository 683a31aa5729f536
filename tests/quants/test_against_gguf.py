"""Dequantisation, bit for bit against the `gguf` package: an independent implementation of the same formats."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.quants import GGMLType, block_geometry, dequantisable_types, dequantise

# gguf has no dequantisation of these; the scalar definitions and the tests of plain types cover them.
NOT_IN_GGUF = {GGMLType.F64, GGMLType.I8, GGMLType.I16, GGMLType.Q8_1, GGMLType.Q8_K}
TYPES = [ggml_type for ggml_type in dequantisable_types() if ggml_type not in NOT_IN_GGUF]

# Byte offsets of the float16 scales and offsets within a block.
FLOAT16_AT = {
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q8_0: (0,),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ2_XXS: (0,),
    GGMLType.IQ2_XS: (0,),
    GGMLType.IQ2_S: (0,),
    GGMLType.IQ3_XXS: (0,),
    GGMLType.IQ3_S: (0,),
    GGMLType.IQ1_S: (0,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
    GGMLType.TQ1_0: (52,),
    GGMLType.TQ2_0: (64,),
}
SPECIAL_FLOAT16 = (
    0x0000,  # zero
    0x8000,  # negative zero
    0x0001,  # the smallest subnormal
    0x83FF,  # the largest subnormal, negative
    0x7BFF,  # the largest finite
    0x7C00,  # infinity
    0xFC00,  # negative infinity
    0x7E00,  # NaN
    0xFE01,  # NaN, negative, with a payload
)


def assert_same_as_gguf(ggml_type: GGMLType, blocks: NDArray[np.uint8]) -> None:
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(int(ggml_type)))
    actual = dequantise(
        ggml_type, blocks, block_geometry(ggml_type).n_values * (blocks.shape[-1] // block_bytes(ggml_type))
    )
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    # Which of several NaNs comes out of an operation depends on the processor, so NaNs are only told from numbers.
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), is_nan)
    np.testing.assert_array_equal(actual[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))


def block_bytes(ggml_type: GGMLType) -> int:
    return block_geometry(ggml_type).n_bytes


@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_random_bytes(ggml_type: GGMLType) -> None:
    rng = np.random.default_rng(int(ggml_type))
    assert_same_as_gguf(ggml_type, rng.integers(0, 256, (300, 2 * block_bytes(ggml_type)), dtype=np.uint8))


@pytest.mark.parametrize("ggml_type", FLOAT16_AT, ids=lambda t: t.name)
def test_special_scales(ggml_type: GGMLType) -> None:
    at = FLOAT16_AT[ggml_type]
    rng = np.random.default_rng(int(ggml_type))
    pairs = [(first, second) for first in SPECIAL_FLOAT16 for second in SPECIAL_FLOAT16]
    blocks = rng.integers(0, 256, (4 * len(pairs), block_bytes(ggml_type)), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for offset, bits in zip(at, pairs[i % len(pairs)], strict=False):
            block[offset : offset + 2] = np.frombuffer(bits.to_bytes(2, "little"), dtype=np.uint8)
    assert_same_as_gguf(ggml_type, blocks)


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x55])
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_uniform_bytes(ggml_type: GGMLType, fill: int) -> None:
    assert_same_as_gguf(ggml_type, np.full((3, block_bytes(ggml_type)), fill, dtype=np.uint8))


def test_mxfp4_at_every_exponent() -> None:
    blocks = np.tile(np.arange(17, dtype=np.uint8) * np.uint8(0x11), (256, 1))
    blocks[:, 0] = np.arange(256)
    assert_same_as_gguf(GGMLType.MXFP4, blocks)


@pytest.mark.parametrize("ggml_type", [GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
def test_every_16_bit_float(ggml_type: GGMLType) -> None:
    assert_same_as_gguf(ggml_type, np.arange(1 << 16, dtype="<u2").view(np.uint8)[None])


def test_block_sizes() -> None:
    for ggml_type in GGMLType:
        if ggml_type is GGMLType.Q8_1:
            continue  # gguf counts its two fields as float32; in ggml's block they are float16
        geometry = block_geometry(ggml_type)
        expected = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(int(ggml_type))]
        assert (geometry.n_values, geometry.n_bytes) == expected, ggml_type.name
