"""The quantisers of the classic formats: to the bit as the `gguf` package's, and within the bounds of their steps."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.quants import GGMLType, dequantise, quantise, unpack

LEGACY = [GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1, GGMLType.Q8_0]
AFFINE = [GGMLType.Q4_1, GGMLType.Q5_1]
# How many steps the range of a block is divided into, and the largest error in steps: the symmetric 4- and 5-bit types
# have no quant for one end of the range, and clip there.
N_STEPS = {GGMLType.Q4_0: 8, GGMLType.Q4_1: 15, GGMLType.Q5_0: 16, GGMLType.Q5_1: 31, GGMLType.Q8_0: 127}
WORST_ERROR = {GGMLType.Q4_0: 1.0, GGMLType.Q4_1: 0.5, GGMLType.Q5_0: 1.0, GGMLType.Q5_1: 0.5, GGMLType.Q8_0: 0.5}
# Rounding to float16: relative for normal numbers, absolute for subnormal ones.
FLOAT16_RELATIVE = 2.0**-11
FLOAT16_ABSOLUTE = 2.0**-25
FLOAT16_OVERFLOW = 65520  # what rounds to infinity: halfway from the largest number to the next step


def gguf_bytes(ggml_type: GGMLType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType(int(ggml_type)))


@pytest.mark.parametrize("spread", [1e-3, 1.0, 4e3])
@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_same_bits_as_gguf(ggml_type: GGMLType, spread: float) -> None:
    rng = np.random.default_rng(int(ggml_type))
    values = np.concatenate(
        [
            rng.normal(size=(40, 64)),
            rng.laplace(size=(40, 64)),
            rng.uniform(-1, 1, size=(40, 64)) + rng.normal(size=(40, 1)),
            np.round(rng.normal(size=(40, 64)) * 8) / 8,  # many ties
            rng.normal(size=(40, 64)) * (rng.random((40, 64)) < 0.05),
        ]
    )
    values = (values * spread).astype(np.float32)
    np.testing.assert_array_equal(quantise(ggml_type, values), gguf_bytes(ggml_type, values))


@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_same_bits_as_gguf_for_steps_that_float16_flushes_to_zero(ggml_type: GGMLType) -> None:
    values = np.random.default_rng(5).normal(size=(20, 32)).astype(np.float32) * np.float32(1e-9)
    packed = quantise(ggml_type, values)
    np.testing.assert_array_equal(packed, gguf_bytes(ggml_type, values))
    np.testing.assert_array_equal(dequantise(ggml_type, packed, 32), 0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    ggml_type=st.sampled_from(LEGACY),
    values=hnp.arrays(
        np.float32, (2, 32), elements=st.floats(-491520, 491520, width=32, allow_nan=False, allow_infinity=False)
    ),
)
def test_error_is_bounded_by_the_step(ggml_type: GGMLType, values: NDArray[np.float32]) -> None:
    exact = values.astype(np.float64)
    if ggml_type in AFFINE:
        offset = np.abs(exact.min(axis=1))
        span = exact.max(axis=1) - exact.min(axis=1)
    else:
        offset = np.zeros(len(values))
        span = np.abs(exact).max(axis=1)
    n_steps = N_STEPS[ggml_type]
    if offset.max() >= FLOAT16_OVERFLOW:  # the range of the values keeps the step below it
        with pytest.raises(ParameterError, match="too large for this type"):
            quantise(ggml_type, values)
        return
    packed = quantise(ggml_type, values)
    # The step is stored in float16, and so is off by a little n_steps times over; the offset once.
    rounding = FLOAT16_RELATIVE * (span + offset) + FLOAT16_ABSOLUTE * (n_steps + 1)
    bound = WORST_ERROR[ggml_type] * span / n_steps + rounding
    error = np.abs(dequantise(ggml_type, packed, 32) - exact).max(axis=1)
    assert (error <= 1.001 * bound).all()  # the rest is float32 rounding


@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_blocks_of_zeros(ggml_type: GGMLType) -> None:
    packed = quantise(ggml_type, np.zeros((2, 64), dtype=np.float32))
    np.testing.assert_array_equal(packed, gguf_bytes(ggml_type, np.zeros((2, 64), dtype=np.float32)))
    np.testing.assert_array_equal(dequantise(ggml_type, packed, 64), 0)


@pytest.mark.parametrize("constant", [1.0, -3.5, 2.0**-10, -60000.0])
@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_constant_blocks(ggml_type: GGMLType, constant: float) -> None:
    values = np.full((1, 32), constant, dtype=np.float32)
    packed = quantise(ggml_type, values)
    np.testing.assert_array_equal(packed, gguf_bytes(ggml_type, values))
    np.testing.assert_allclose(dequantise(ggml_type, packed, 32), values, rtol=FLOAT16_RELATIVE)


@pytest.mark.parametrize("magnitude", [1e-45, 3e-39, 1e-38, 1e-30])
@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_tiny_values_give_zeros_without_a_warning(ggml_type: GGMLType, magnitude: float) -> None:
    values = (np.linspace(-1, 1, 32) * magnitude).astype(np.float32)
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        packed = quantise(ggml_type, values)
    np.testing.assert_array_equal(dequantise(ggml_type, packed, 32), 0)
    assert (unpack(ggml_type, packed, 32).scales == 0).all()


@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_steps_without_a_reciprocal_give_quants_of_zero(ggml_type: GGMLType) -> None:
    values = (np.linspace(-1, 1, 32) * 1e-39).astype(np.float32)
    np.testing.assert_array_equal(unpack(ggml_type, quantise(ggml_type, values), 32).quants, 0)


@pytest.mark.parametrize("magnitude", [1e7, 1e20, 3.4e38])
@pytest.mark.parametrize("ggml_type", LEGACY, ids=lambda t: t.name)
def test_values_too_large_for_the_scale_are_refused(ggml_type: GGMLType, magnitude: float) -> None:
    values = np.zeros((2, 32), dtype=np.float32)
    values[1, 3:5] = magnitude, -magnitude
    with pytest.raises(ParameterError, match=r"too large for this type: .* float16 ends at 65504"):
        quantise(ggml_type, values)


def test_q8_0_rounds_halves_away_from_zero_and_nothing_else_up() -> None:
    just_below_half = np.nextafter(np.float32(0.5), np.float32(0))
    values = np.zeros(32, dtype=np.float32)
    values[:6] = 127, 0.5, -0.5, 1.5, just_below_half, -just_below_half
    packed = quantise(GGMLType.Q8_0, values)
    assert packed[2:8].view(np.int8).tolist() == [127, 1, -1, 2, 0, 0]


def test_symmetric_types_put_the_largest_magnitude_on_the_lowest_quant() -> None:
    values = np.zeros(32, dtype=np.float32)
    values[:3] = 4.0, -4.0, 3.5
    parts = unpack(GGMLType.Q4_0, quantise(GGMLType.Q4_0, values), 32)
    assert parts.scales.tolist() == [[-0.5]]
    assert parts.quants[0, 0, :3].tolist() == [-8, 7, -7]
