"""The plain number types."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from minfer.errors import ParameterError
from minfer.quants import GGMLType, dequantise, quantise

LARGEST = float(np.finfo(np.float32).max)


def test_f32_keeps_every_bit() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1000, dtype=np.uint32)
    out = dequantise(GGMLType.F32, bits.view(np.uint8), 1000)
    np.testing.assert_array_equal(out.view(np.uint32), bits)


def test_bf16_keeps_every_bit() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = dequantise(GGMLType.BF16, bits.view(np.uint8), 1 << 16)
    np.testing.assert_array_equal(out.view(np.uint32), bits.astype(np.uint32) << 16)


def test_f64_is_rounded_to_the_nearest_float32() -> None:
    values = np.array([0.1, -1e-50, 1e-40, 1e300, -np.inf, 1 + 2**-24, 1 + 3 * 2**-24])
    out = dequantise(GGMLType.F64, values.view(np.uint8), len(values))
    expected = np.array([0.1, -0.0, 1e-40, np.inf, -np.inf, 1, 1 + 2**-22], dtype=np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(("ggml_type", "dtype"), [(GGMLType.I8, "i1"), (GGMLType.I16, "<i2")])
def test_integers_are_their_own_values(ggml_type: GGMLType, dtype: str) -> None:
    limits = np.iinfo(np.dtype(dtype))
    values = np.arange(limits.min, limits.max + 1).astype(dtype)
    out = dequantise(ggml_type, values.view(np.uint8), len(values))
    np.testing.assert_array_equal(out, values.astype(np.float64))


@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
def test_quantise_matches_gguf(ggml_type: GGMLType) -> None:
    rng = np.random.default_rng(3)
    values = (rng.normal(size=4000) * 10.0 ** rng.integers(-9, 5, 4000)).astype(np.float32).clip(-65000, 65000)
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType(int(ggml_type)))
    np.testing.assert_array_equal(quantise(ggml_type, values), expected.view(np.uint8))


@pytest.mark.parametrize(
    ("ggml_type", "ulp_at_one"), [(GGMLType.F16, 2.0**-10), (GGMLType.BF16, 2.0**-7)], ids=["F16", "BF16"]
)
def test_ties_go_to_even(ggml_type: GGMLType, ulp_at_one: float) -> None:
    values = (1 + ulp_at_one * np.array([0.5, 0.51, 1.5, 2.5])).astype(np.float32)
    rounded = dequantise(ggml_type, quantise(ggml_type, values), 4)
    np.testing.assert_array_equal(rounded, (1 + ulp_at_one * np.array([0, 1, 2, 2])).astype(np.float32))


@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
def test_what_the_type_holds_comes_back(ggml_type: GGMLType) -> None:
    values = np.array(
        [0.0, -0.0, 1.0, -2.5, 2.0**-14, 2.0**-24 if ggml_type is GGMLType.F16 else 2.0**-130], np.float32
    )
    back = dequantise(ggml_type, quantise(ggml_type, values), len(values))
    np.testing.assert_array_equal(back.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize(
    ("ggml_type", "largest", "beyond"),
    [(GGMLType.F16, 65519.0, -65520.0), (GGMLType.BF16, 3.3895e38, -LARGEST)],
    ids=["F16", "BF16"],
)
def test_values_beyond_the_type_are_refused(ggml_type: GGMLType, largest: float, beyond: float) -> None:
    assert np.isfinite(dequantise(ggml_type, quantise(ggml_type, np.array([largest], np.float32)), 1)).all()
    with pytest.raises(ParameterError, match=rf"is beyond the range of {ggml_type.name}"):
        quantise(ggml_type, np.array([1.0, beyond], np.float32))
