"""The quantisers of the K formats.

`data/k_quants_ggml.npz` holds 18 blocks of values (normal, Laplace, Student's t, positive, shifted and sparse, three of
each) and the bytes that the reference quantisers of ggml 0.13.1 (`quantize_row_*_ref`) make of them.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.quants import GGMLType, dequantise, k_quants, quantise, unpack

K_TYPES = [GGMLType.Q2_K, GGMLType.Q3_K, GGMLType.Q4_K, GGMLType.Q5_K, GGMLType.Q6_K]
# The range of the quants as they are unpacked.
QUANT_RANGE = {
    GGMLType.Q2_K: (0, 3),
    GGMLType.Q3_K: (-4, 3),
    GGMLType.Q4_K: (0, 15),
    GGMLType.Q5_K: (0, 31),
    GGMLType.Q6_K: (-32, 31),
}
FIELDS = {
    GGMLType.Q2_K: k_quants.Q2_K,
    GGMLType.Q3_K: k_quants.Q3_K,
    GGMLType.Q4_K: k_quants.Q4_K,
    GGMLType.Q5_K: k_quants.Q5_K,
    GGMLType.Q6_K: k_quants.Q6_K,
}


@pytest.fixture(scope="module")
def golden() -> dict[str, NDArray[np.generic]]:
    with np.load(Path(__file__).parent / "data" / "k_quants_ggml.npz") as arrays:
        return dict(arrays)


def mixed_values(seed: int) -> NDArray[np.float32]:
    """Shape (8, 512)."""
    rng = np.random.default_rng(seed)
    rows = [
        rng.normal(size=(2, 512)),
        rng.standard_t(2, size=(2, 512)),
        np.abs(rng.laplace(size=(2, 512))),
        rng.normal(size=(2, 512)) * (rng.random((2, 512)) < 0.1),
    ]
    return np.concatenate(rows).astype(np.float32)


def squared_error(ggml_type: GGMLType, packed: NDArray[np.uint8], values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each row."""
    error: NDArray[np.float64] = dequantise(ggml_type, packed, values.shape[-1]).astype(np.float64) - values
    return np.square(error).sum(axis=-1)


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_error_is_that_of_ggml(ggml_type: GGMLType, golden: dict[str, NDArray]) -> None:
    values = golden["values"]
    ours = squared_error(ggml_type, quantise(ggml_type, values), values)
    ggml = squared_error(ggml_type, golden[ggml_type.name], values)
    assert (ggml > 0).all()
    assert (ours <= 1.05 * ggml).all()
    assert ours.sum() <= 1.001 * ggml.sum()


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_most_blocks_decode_as_those_of_ggml(ggml_type: GGMLType, golden: dict[str, NDArray]) -> None:
    ours = dequantise(ggml_type, quantise(ggml_type, golden["values"]), 256)
    same = (ours == dequantise(ggml_type, golden[ggml_type.name], 256)).all(axis=1)
    assert same.mean() > 0.7  # the rest differs in the last bit of a sum, where the compiler fused multiply and add


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_each_value_takes_its_nearest_quant(ggml_type: GGMLType) -> None:
    values = mixed_values(1)
    parts = unpack(ggml_type, quantise(ggml_type, values), 512)
    lowest, highest = QUANT_RANGE[ggml_type]
    assert parts.quants.min() == lowest
    assert parts.quants.max() == highest
    scales = parts.scales[..., None].astype(np.float64)
    offsets = np.zeros_like(scales) if parts.offsets is None else parts.offsets[..., None].astype(np.float64)
    wanted = values.reshape(parts.quants.shape).astype(np.float64)
    actual_error = np.abs(scales * parts.quants + offsets - wanted)
    candidates = scales[..., None] * np.arange(lowest, highest + 1) + offsets[..., None]
    least_error = np.abs(candidates - wanted[..., None]).min(axis=-1)
    assert (actual_error <= least_error + 1e-5 * np.abs(scales)).all()


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_the_search_beats_the_plain_range(ggml_type: GGMLType) -> None:
    """Against groups with exact float scales from their extremes: quantising a group's scale must not cost the gain."""
    values = np.random.default_rng(9).normal(size=(16, 256)).astype(np.float32)
    lowest, highest = QUANT_RANGE[ggml_type]
    group = 32 if ggml_type in (GGMLType.Q4_K, GGMLType.Q5_K) else 16
    groups = values.reshape(-1, group).astype(np.float64)
    if lowest == 0:
        offset = groups.min(axis=1, keepdims=True)
        step = (groups.max(axis=1, keepdims=True) - offset) / highest
    else:
        offset = np.zeros((len(groups), 1))
        step = np.abs(groups).max(axis=1, keepdims=True) / highest
    plain = np.square(np.rint((groups - offset) / step) * step + offset - groups).sum()
    assert squared_error(ggml_type, quantise(ggml_type, values), values).sum() < plain


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_more_bits_mean_less_error(ggml_type: GGMLType) -> None:
    values = np.random.default_rng(4).normal(size=(8, 256)).astype(np.float32)
    relative = np.sqrt(squared_error(ggml_type, quantise(ggml_type, values), values).sum() / np.square(values).sum())
    expected = {
        GGMLType.Q2_K: 0.30,
        GGMLType.Q3_K: 0.15,
        GGMLType.Q4_K: 0.07,
        GGMLType.Q5_K: 0.036,
        GGMLType.Q6_K: 0.018,
    }
    assert relative == pytest.approx(expected[ggml_type], rel=0.1)


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_what_was_quantised_quantises_well_again(ggml_type: GGMLType) -> None:
    once = dequantise(ggml_type, quantise(ggml_type, mixed_values(2)), 512)
    first = squared_error(ggml_type, quantise(ggml_type, mixed_values(2)), mixed_values(2)).sum()
    again = squared_error(ggml_type, quantise(ggml_type, once), once).sum()
    assert again < 0.5 * first


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_blocks_of_zeros(ggml_type: GGMLType) -> None:
    values = mixed_values(3)
    values[1, :256] = 0
    values[4, 256:] = -0.0
    back = dequantise(ggml_type, quantise(ggml_type, values), 512)
    np.testing.assert_array_equal(back[1, :256], 0)
    np.testing.assert_array_equal(back[4, 256:], 0)
    assert (back[1, 256:] != 0).any()


@pytest.mark.parametrize("constant", [1.0, -1.0, 0.37, -2500.0])
@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_constant_blocks(ggml_type: GGMLType, constant: float) -> None:
    values = np.full((2, 256), constant, dtype=np.float32)
    back = dequantise(ggml_type, quantise(ggml_type, values), 256)
    np.testing.assert_allclose(back, values, rtol=2e-3)


@pytest.mark.parametrize("magnitude", [1e-45, 1e-40, 1e-38, 1e-30, 1e-16, 1e-12, 1e-7])
@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_tiny_values_give_valid_blocks(ggml_type: GGMLType, magnitude: float) -> None:
    values = mixed_values(5) * np.float32(magnitude)
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        packed = quantise(ggml_type, values)
    # A unit of float16 is 2^-24 at least, and the scales are multiples of it: values err by some such multiples.
    error = np.abs(dequantise(ggml_type, packed, 512) - values)
    assert error.max() <= np.abs(values).max() + 2.0**-24


@pytest.mark.parametrize("magnitude", [1e-40, 1e-30, 1e-12])
@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_blocks_whose_unit_float16_flushes_to_zero_hold_zeros(ggml_type: GGMLType, magnitude: float) -> None:
    layout = FIELDS[ggml_type]
    values = mixed_values(5) * np.float32(magnitude)
    packed = quantise(ggml_type, values)
    of_zeros = quantise(ggml_type, np.zeros_like(values))
    np.testing.assert_array_equal(packed.view(layout)["scales"], of_zeros.view(layout)["scales"])
    np.testing.assert_array_equal(packed.view(layout)["d"], 0)
    np.testing.assert_array_equal(unpack(ggml_type, packed, 512).quants, 0)


def values_with_large_ones(magnitude: float) -> NDArray[np.float32]:
    values = np.random.default_rng(6).normal(size=(2, 512)).clip(-3, 3).astype(np.float32)
    values[1, 40:72] *= np.float32(magnitude)
    return values


@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_large_values_are_kept(ggml_type: GGMLType) -> None:
    values = values_with_large_ones(2e5)
    back = dequantise(ggml_type, quantise(ggml_type, values), 512)
    assert np.abs(back - values).max() < 0.3 * np.abs(values).max()


@pytest.mark.parametrize("magnitude", [4e8, 1e10, 1e13, 1e17, 1e20, 1e30, 1e38])
@pytest.mark.parametrize("ggml_type", K_TYPES, ids=lambda t: t.name)
def test_values_too_large_for_the_scale_are_refused(ggml_type: GGMLType, magnitude: float) -> None:
    """Also where sums of squares or cubes overflow in the search: never a block of zeros."""
    with pytest.raises(ParameterError, match=r"too large for this type: .* float16 ends at 65504"):
        quantise(ggml_type, values_with_large_ones(magnitude))
