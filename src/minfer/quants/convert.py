"""From packed bytes to float32 and back, for every type: one table, and one walk over the data in chunks.

Work goes through chunks of blocks small enough that all temporaries stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError, UnsupportedError
from minfer.quants import floats, iq, iq4, k_quantise, k_quants, legacy, mxfp4, ternary
from minfer.quants.blocks import BlockFormat, UnpackedBlocks
from minfer.quants.floats import PlainFormat
from minfer.quants.ggml_types import GGMLType, block_geometry, row_bytes

_FORMATS: Mapping[GGMLType, PlainFormat | BlockFormat] = MappingProxyType(
    {
        GGMLType.F32: PlainFormat(floats.F32, floats.read_numbers, floats.encode_f32),
        GGMLType.F16: PlainFormat(floats.F16, floats.read_numbers, floats.encode_f16),
        GGMLType.BF16: PlainFormat(floats.BF16, floats.read_bf16, floats.encode_bf16),
        GGMLType.F64: PlainFormat(floats.F64, floats.read_numbers),
        GGMLType.I8: PlainFormat(floats.I8, floats.read_numbers),
        GGMLType.I16: PlainFormat(floats.I16, floats.read_numbers),
        GGMLType.Q4_0: BlockFormat(legacy.Q4_0, legacy.unpack_q4_0, legacy.encode_q4_0),
        GGMLType.Q4_1: BlockFormat(legacy.Q4_1, legacy.unpack_q4_1, legacy.encode_q4_1),
        GGMLType.Q5_0: BlockFormat(legacy.Q5_0, legacy.unpack_q5_0, legacy.encode_q5_0),
        GGMLType.Q5_1: BlockFormat(legacy.Q5_1, legacy.unpack_q5_1, legacy.encode_q5_1),
        GGMLType.Q8_0: BlockFormat(legacy.Q8_0, legacy.unpack_q8, legacy.encode_q8_0),
        GGMLType.Q8_1: BlockFormat(legacy.Q8_1, legacy.unpack_q8),
        GGMLType.Q2_K: BlockFormat(k_quants.Q2_K, k_quants.unpack_q2_k, k_quantise.encode_q2_k),
        GGMLType.Q3_K: BlockFormat(k_quants.Q3_K, k_quants.unpack_q3_k, k_quantise.encode_q3_k),
        GGMLType.Q4_K: BlockFormat(k_quants.Q4_K, k_quants.unpack_q4_k, k_quantise.encode_q4_k),
        GGMLType.Q5_K: BlockFormat(k_quants.Q5_K, k_quants.unpack_q5_k, k_quantise.encode_q5_k),
        GGMLType.Q6_K: BlockFormat(k_quants.Q6_K, k_quants.unpack_q6_k, k_quantise.encode_q6_k),
        GGMLType.Q8_K: BlockFormat(k_quants.Q8_K, k_quants.unpack_q8_k),
        GGMLType.IQ2_XXS: BlockFormat(iq.IQ2_XXS, iq.unpack_iq2_xxs),
        GGMLType.IQ2_XS: BlockFormat(iq.IQ2_XS, iq.unpack_iq2_xs),
        GGMLType.IQ2_S: BlockFormat(iq.IQ2_S, iq.unpack_iq2_s),
        GGMLType.IQ3_XXS: BlockFormat(iq.IQ3_XXS, iq.unpack_iq3_xxs),
        GGMLType.IQ3_S: BlockFormat(iq.IQ3_S, iq.unpack_iq3_s),
        GGMLType.IQ1_S: BlockFormat(iq.IQ1_S, iq.unpack_iq1_s),
        GGMLType.IQ1_M: BlockFormat(iq.IQ1_M, iq.unpack_iq1_m),
        GGMLType.IQ4_NL: BlockFormat(iq4.IQ4_NL, iq4.unpack_iq4_nl),
        GGMLType.IQ4_XS: BlockFormat(iq4.IQ4_XS, iq4.unpack_iq4_xs),
        GGMLType.TQ1_0: BlockFormat(ternary.TQ1_0, ternary.unpack_tq1_0),
        GGMLType.TQ2_0: BlockFormat(ternary.TQ2_0, ternary.unpack_tq2_0),
        GGMLType.MXFP4: BlockFormat(mxfp4.MXFP4, mxfp4.unpack_mxfp4),
    }
)

_CHUNK_VALUES = 1 << 16


def dequantisable_types() -> tuple[GGMLType, ...]:
    """The types that `dequantise` reads, by number."""
    return tuple(sorted(_FORMATS))


def quantisable_types() -> tuple[GGMLType, ...]:
    """The types that `quantise` writes, by number."""
    return tuple(sorted(ggml_type for ggml_type, form in _FORMATS.items() if form.encode is not None))


def unpackable_types() -> tuple[GGMLType, ...]:
    """The types that `unpack` takes apart, by number: all that store integers in scaled groups."""
    return tuple(sorted(ggml_type for ggml_type, form in _FORMATS.items() if isinstance(form, BlockFormat)))


def dequantise(ggml_type: GGMLType, data: NDArray[np.uint8], n_values: int) -> NDArray[np.float32]:
    """The values of packed rows.

    Args:
        ggml_type: how the rows are packed.
        data: uint8, shape (..., row_bytes); may be read-only and memory-mapped. Copied (in packed form) only where it
            is not C-contiguous.
        n_values: the length of a row.

    Returns:
        New float32 array, shape (..., n_values). Scales that are infinite or NaN give what IEEE arithmetic gives.

    Raises:
        UnsupportedError: there is no definition for the type.
        ParameterError: `data` is not uint8, or its rows do not have the bytes of `n_values` values of the type.
    """
    form = _FORMATS.get(ggml_type)
    if form is None:
        raise UnsupportedError(f"dequantising {ggml_type.name}", _names(dequantisable_types()))
    items = _as_items(ggml_type, form, data, n_values)
    out = np.empty((*data.shape[:-1], n_values), dtype=np.float32)
    values = out.reshape(len(items), block_geometry(ggml_type).n_values)
    with np.errstate(all="ignore"):
        for chunk in _chunks(values):
            form.decode(items[chunk], values[chunk])
    return out


def unpack(ggml_type: GGMLType, data: NDArray[np.uint8], n_values: int) -> UnpackedBlocks:
    """Packed rows as integers, scales and offsets, without loss: what a kernel's own weight layout is made from.

    Args:
        ggml_type: how the rows are packed; one of `unpackable_types`.
        data: uint8, shape (..., row_bytes).
        n_values: the length of a row.

    Returns:
        The blocks of all rows, one after the other. Its arrays may share memory with `data`.

    Raises:
        UnsupportedError: the type has no scaled groups.
        ParameterError: as `dequantise`.
    """
    form = _FORMATS.get(ggml_type)
    if not isinstance(form, BlockFormat):
        raise UnsupportedError(f"unpacking {ggml_type.name}", _names(unpackable_types()))
    with np.errstate(all="ignore"):
        return form.unpack(_as_items(ggml_type, form, data, n_values))


def quantise(ggml_type: GGMLType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Packs rows of values.

    The result of a block depends on its values only, not on its neighbours.

    Args:
        ggml_type: how to pack; one of `quantisable_types`.
        values: float32, shape (..., n_values).

    Returns:
        New uint8 array, shape (..., row_bytes).

    Raises:
        UnsupportedError: the type can't be quantised.
        ParameterError: `values` is not float32, its rows are no whole number of blocks, a value is NaN or infinite, or
            too large for the type.
    """
    form = _FORMATS.get(ggml_type)
    if form is None or form.encode is None:
        raise UnsupportedError(f"quantising to {ggml_type.name}", _names(quantisable_types()))
    if values.dtype != np.float32 or values.ndim == 0:
        raise ParameterError(
            f"values to quantise must be a float32 array of rows, not {values.dtype} of shape {values.shape}"
        )
    geometry = block_geometry(ggml_type)
    n_values = values.shape[-1]
    _check_whole_blocks(ggml_type, n_values)
    out = np.empty((*values.shape[:-1], row_bytes(ggml_type, n_values)), dtype=np.uint8)
    items = out.reshape(-1).view(form.layout)
    blocks = np.ascontiguousarray(values).reshape(len(items), geometry.n_values)
    with np.errstate(all="ignore"):
        for chunk in _chunks(blocks):
            _check_finite(blocks[chunk], chunk.start, values.shape)
            items[chunk] = form.encode(blocks[chunk]).reshape(-1)
    return out


def _names(types: tuple[GGMLType, ...]) -> list[str]:
    return [ggml_type.name for ggml_type in types]


def _check_whole_blocks(ggml_type: GGMLType, n_values: int) -> None:
    block = block_geometry(ggml_type).n_values
    if n_values < 0 or n_values % block:
        raise ParameterError(
            f"a row of {n_values} values is no whole number of {ggml_type.name} blocks of {block} values"
        )


def _check_finite(blocks: NDArray[np.float32], first_block: int, shape: tuple[int, ...]) -> None:
    finite = np.isfinite(blocks)
    if not finite.all():
        at = int(finite.argmin())
        index = tuple(int(i) for i in np.unravel_index(first_block * blocks.shape[1] + at, shape))
        raise ParameterError(f"can't quantise {blocks.flat[at]}, the value at {index}: values must be finite")


def _as_items(
    ggml_type: GGMLType, form: PlainFormat | BlockFormat, data: NDArray[np.uint8], n_values: int
) -> NDArray[Any]:
    """The blocks (or single numbers) of all rows, shape (n_items,)."""
    _check_whole_blocks(ggml_type, n_values)
    if data.dtype != np.uint8 or data.ndim == 0:
        raise ParameterError(f"packed data must be a uint8 array of rows, not {data.dtype} of shape {data.shape}")
    expected = row_bytes(ggml_type, n_values)
    if data.shape[-1] != expected:
        raise ParameterError(
            f"a row of {n_values} {ggml_type.name} values takes {expected} bytes, "
            f"but the rows of the data have {data.shape[-1]} (shape {data.shape})"
        )
    return np.ascontiguousarray(data).reshape(-1).view(form.layout)


def _chunks(blocks: NDArray[np.float32]) -> Iterator[slice]:
    """Slices that cover the rows of `blocks`, each of some `_CHUNK_VALUES` values."""
    n_blocks, block = blocks.shape
    step = _CHUNK_VALUES // block
    return (slice(start, start + step) for start in range(0, n_blocks, step))
