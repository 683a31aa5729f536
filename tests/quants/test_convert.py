"""`dequantise`, `quantise` and `unpack` as functions of shapes, memory and wrong arguments."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from minfer.errors import ParameterError, UnsupportedError
from minfer.quants import (
    GGMLType,
    block_geometry,
    convert,
    dequantisable_types,
    dequantise,
    quantisable_types,
    quantise,
    row_bytes,
    unpack,
    unpackable_types,
)

ALL = dequantisable_types()
QUANTISABLE = quantisable_types()
INTEGERS_WIDER_THAN_FLOAT32 = {GGMLType.I32, GGMLType.I64}


def packed_rows(ggml_type: GGMLType, *shape: int, seed: int = 0) -> np.ndarray:
    """Random packed rows, each of shape[-1] values."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*shape[:-1], row_bytes(ggml_type, shape[-1])), dtype=np.uint8)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def test_which_types_can_be_converted() -> None:
    assert set(ALL) == set(GGMLType) - INTEGERS_WIDER_THAN_FLOAT32
    assert [t.name for t in QUANTISABLE] == [
        *("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16"),
    ]
    assert set(ALL) - set(unpackable_types()) == {
        *(GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.F64, GGMLType.I8, GGMLType.I16)
    }
    assert list(ALL) == sorted(ALL)


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_layouts_have_the_size_of_their_blocks(ggml_type: GGMLType) -> None:
    assert convert._FORMATS[ggml_type].layout.itemsize == block_geometry(ggml_type).n_bytes


def test_the_table_of_formats_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        convert._FORMATS[GGMLType.I64] = convert._FORMATS[GGMLType.I8]  # type: ignore[index]


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_leading_dimensions(ggml_type: GGMLType) -> None:
    n_values = 3 * block_geometry(ggml_type).n_values
    data = packed_rows(ggml_type, 2, 4, n_values)
    out = dequantise(ggml_type, data, n_values)
    assert out.shape == (2, 4, n_values)
    for i in range(2):
        for j in range(4):
            assert_same_bits(out[i, j], dequantise(ggml_type, data[i, j], n_values))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_empty_leading_dimensions(ggml_type: GGMLType, shape: tuple[int, ...]) -> None:
    n_values = 2 * block_geometry(ggml_type).n_values
    out = dequantise(ggml_type, packed_rows(ggml_type, *shape, n_values), n_values)
    assert out.shape == (*shape, n_values)
    if ggml_type in QUANTISABLE:
        packed = quantise(ggml_type, np.zeros((*shape, n_values), dtype=np.float32))
        assert packed.shape == (*shape, row_bytes(ggml_type, n_values))


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_rows_of_no_values(ggml_type: GGMLType) -> None:
    assert dequantise(ggml_type, np.zeros((2, 0), dtype=np.uint8), 0).shape == (2, 0)


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_memory_that_is_not_contiguous(ggml_type: GGMLType) -> None:
    n_values = 2 * block_geometry(ggml_type).n_values
    data = packed_rows(ggml_type, 4, 3, n_values)
    expected = dequantise(ggml_type, data, n_values)
    assert_same_bits(dequantise(ggml_type, data[::-2], n_values), expected[::-2])
    assert_same_bits(dequantise(ggml_type, data.transpose(1, 0, 2), n_values), expected.transpose(1, 0, 2))
    spread = np.zeros((*data.shape, 2), dtype=np.uint8)
    spread[..., 0] = data
    assert_same_bits(dequantise(ggml_type, spread[..., 0], n_values), expected)


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_read_only_memory_maps_at_odd_addresses(ggml_type: GGMLType, tmp_path: Path) -> None:
    n_values = 2 * block_geometry(ggml_type).n_values
    data = packed_rows(ggml_type, 3, n_values)
    path = tmp_path / "weights"
    path.write_bytes(b"\x00" + data.tobytes())
    mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=1, shape=data.shape)
    out = dequantise(ggml_type, mapped, n_values)
    assert type(out) is np.ndarray
    assert out.flags.writeable
    assert_same_bits(out, dequantise(ggml_type, data, n_values))


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_chunks_leave_no_seams(ggml_type: GGMLType) -> None:
    block = block_geometry(ggml_type).n_values
    n_values = convert._CHUNK_VALUES + 3 * block
    data = packed_rows(ggml_type, 2, n_values)
    out = dequantise(ggml_type, data, n_values)
    by_block = dequantise(ggml_type, data.reshape(-1, block_geometry(ggml_type).n_bytes)[-5:], block)
    assert_same_bits(out.reshape(-1, block)[-5:], by_block)
    assert_same_bits(out[0, -block:], dequantise(ggml_type, data[0, -block_geometry(ggml_type).n_bytes :], block))


@pytest.mark.parametrize("ggml_type", QUANTISABLE, ids=lambda t: t.name)
def test_quantised_blocks_do_not_depend_on_their_neighbours(ggml_type: GGMLType) -> None:
    block = block_geometry(ggml_type)
    n_blocks = convert._CHUNK_VALUES // block.n_values + 2
    values = np.random.default_rng(1).standard_t(3, size=(n_blocks, block.n_values)).astype(np.float32)
    packed = quantise(ggml_type, values.reshape(1, -1))[0].reshape(n_blocks, block.n_bytes)
    for i in (0, 1, n_blocks - 3, n_blocks - 2, n_blocks - 1):
        np.testing.assert_array_equal(packed[i], quantise(ggml_type, values[i]))


@pytest.mark.parametrize("ggml_type", QUANTISABLE, ids=lambda t: t.name)
def test_quantise_takes_memory_that_is_not_contiguous(ggml_type: GGMLType) -> None:
    n_values = 2 * block_geometry(ggml_type).n_values
    values = np.random.default_rng(2).normal(size=(3, n_values, 2)).astype(np.float32)
    packed = quantise(ggml_type, values.transpose(2, 0, 1))
    assert packed.shape == (2, 3, row_bytes(ggml_type, n_values))
    np.testing.assert_array_equal(packed[1], quantise(ggml_type, np.ascontiguousarray(values[..., 1])))


@pytest.mark.parametrize("ggml_type", ALL, ids=lambda t: t.name)
def test_no_warning_escapes(ggml_type: GGMLType) -> None:
    n_values = 4 * block_geometry(ggml_type).n_values
    data = np.concatenate(
        [packed_rows(ggml_type, 500, n_values), np.full((1, row_bytes(ggml_type, n_values)), 0x7F, dtype=np.uint8)]
    )
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        out = dequantise(ggml_type, data, n_values)
        if ggml_type in unpackable_types():
            unpack(ggml_type, data, n_values)
    assert out.shape == (501, n_values)


def test_unpack_shares_memory_where_it_can() -> None:
    data = packed_rows(GGMLType.Q8_0, 2, 64)
    assert np.shares_memory(unpack(GGMLType.Q8_0, data, 64).quants, data)


@pytest.mark.parametrize("ggml_type", sorted(INTEGERS_WIDER_THAN_FLOAT32), ids=lambda t: t.name)
def test_types_without_a_definition_are_refused_by_name(ggml_type: GGMLType) -> None:
    with pytest.raises(UnsupportedError, match=rf"dequantising {ggml_type.name} is not supported; supported: F32, F16"):
        dequantise(ggml_type, np.zeros(8, dtype=np.uint8), 1)
    with pytest.raises(UnsupportedError, match=rf"unpacking {ggml_type.name} .*Q4_0"):
        unpack(ggml_type, np.zeros(8, dtype=np.uint8), 1)
    with pytest.raises(UnsupportedError, match=rf"quantising to {ggml_type.name} .*Q4_0"):
        quantise(ggml_type, np.zeros(8, dtype=np.float32))


def test_types_that_are_only_read_are_refused_with_those_that_can_be_written() -> None:
    with pytest.raises(UnsupportedError) as caught:
        quantise(GGMLType.IQ2_XXS, np.zeros(256, dtype=np.float32))
    assert "quantising to IQ2_XXS is not supported" in str(caught.value)
    assert caught.value.supported == tuple(t.name for t in QUANTISABLE)


def test_plain_types_cannot_be_unpacked() -> None:
    with pytest.raises(UnsupportedError) as caught:
        unpack(GGMLType.BF16, np.zeros(2, dtype=np.uint8), 1)
    assert caught.value.supported == tuple(t.name for t in unpackable_types())


@pytest.mark.parametrize("n_bytes", [143, 145, 144, 0])
def test_rows_of_the_wrong_size_are_refused_with_the_numbers(n_bytes: int) -> None:
    with pytest.raises(
        ParameterError, match=rf"512 Q4_K values takes 288 bytes, .* have {n_bytes} \(shape \(2, {n_bytes}\)\)"
    ):
        dequantise(GGMLType.Q4_K, np.zeros((2, n_bytes), dtype=np.uint8), 512)


@pytest.mark.parametrize("n_values", [255, 257, 1, -256])
def test_rows_that_are_no_whole_number_of_blocks_are_refused(n_values: int) -> None:
    with pytest.raises(ParameterError, match=rf"a row of {n_values} values is no whole number of Q6_K blocks of 256"):
        dequantise(GGMLType.Q6_K, np.zeros(210, dtype=np.uint8), n_values)


def test_values_that_are_no_whole_number_of_blocks_are_refused() -> None:
    with pytest.raises(ParameterError, match="a row of 33 values is no whole number of Q8_0 blocks of 32"):
        quantise(GGMLType.Q8_0, np.zeros((2, 33), dtype=np.float32))


@pytest.mark.parametrize("data", [np.zeros(34, dtype=np.int8), np.zeros((), dtype=np.uint8)], ids=["int8", "scalar"])
def test_data_of_another_kind_is_refused(data: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="packed data must be a uint8 array of rows"):
        dequantise(GGMLType.Q8_0, data, 32)


@pytest.mark.parametrize("values", [np.zeros(32), np.zeros((), dtype=np.float32)], ids=["float64", "scalar"])
def test_values_of_another_kind_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="values to quantise must be a float32 array of rows"):
        quantise(GGMLType.Q8_0, values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("ggml_type", QUANTISABLE, ids=lambda t: t.name)
def test_values_that_are_not_finite_are_refused_with_their_place(ggml_type: GGMLType, bad: float) -> None:
    values = np.zeros((3, 2, 512), dtype=np.float32)
    values[2, 1, 300] = bad
    with pytest.raises(ParameterError, match=rf"can't quantise {bad}, the value at \(2, 1, 300\): .* finite"):
        quantise(ggml_type, values)


def test_a_bad_value_beyond_the_first_chunk_is_found() -> None:
    values = np.zeros((2, convert._CHUNK_VALUES), dtype=np.float32)
    values[1, 7] = np.nan
    with pytest.raises(ParameterError, match=r"the value at \(1, 7\)"):
        quantise(GGMLType.Q4_0, values)
