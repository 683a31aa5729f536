"""The KV store against the definition of its types in `quants`, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import (
    INTERPRETER,
    TARGETS,
    aligned,
    check_chunks_are_disjoint,
    near_halves,
    normal,
    run_kernel,
    same_bits,
)
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.kv_rows import cell_bytes
from minfer.backends.cpu.ops.kv_store import StoreShape, trace_kv_store
from minfer.quants import GGMLType, dequantise, quantise

N_HEADS, HEAD_DIM, VALUE_DIM, N_CELLS = 3, 64, 32, 40
TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0)


def stored(
    ggml_type: GGMLType, k: NDArray[np.float32], v: NDArray[np.float32], cells: NDArray[np.int32], target: str
) -> list[NDArray[np.uint8]]:
    """The two regions after the store; 0xAB where nothing was."""
    widths = (k.shape[2], v.shape[2])
    regions = [aligned(np.full((N_CELLS, cell_bytes(k.shape[1], w, ggml_type)), 0xAB, np.uint8)) for w in widths]
    kernel = trace_kv_store(StoreShape(k.shape[1], *widths, ggml_type, ggml_type))
    inputs = {StepWord.CELLS: cells}
    run_kernel(kernel, [k, v, *regions], range(len(k)), n_tokens=len(k), inputs=inputs, target=target)
    return regions


@pytest.mark.parametrize("target", [*TARGETS, INTERPRETER])
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_writes_what_the_definition_quantises(ggml_type: GGMLType, target: str) -> None:
    n = 6 if target == INTERPRETER else 30
    k, v = normal(n, N_HEADS, HEAD_DIM), normal(n, N_HEADS, VALUE_DIM, seed=1)
    k[0, 0, :32] = 0
    k[1, 1, :32] = 1e-42
    k[2, 0] *= 1e-7  # subnormal in f16
    k[3, 2, :32] = np.arange(32) - 15.5
    v[:, :2] = near_halves(2 * n).reshape(n, 2, 32)
    if ggml_type is GGMLType.F16:
        v = np.clip(v, -6e4, 6e4)
    cells = np.random.default_rng(0).permutation(N_CELLS)[:n].astype(np.int32)
    regions = stored(ggml_type, k, v, cells, target)
    others = np.setdiff1d(np.arange(N_CELLS), cells)
    for rows, region in zip((k, v), regions, strict=True):
        assert same_bits(region[cells], quantise(ggml_type, rows).reshape(n, -1))
        assert (region[others] == 0xAB).all()


def test_the_values_near_halves_tell_roundings_apart() -> None:
    x = near_halves(600)
    scaled = x * (np.float32(1) / (np.abs(x).max(axis=1) / np.float32(127)))[:, None]
    adding_half = np.copysign(np.floor(np.abs(scaled) + np.float32(0.5)), scaled)
    for wrong in (np.rint(scaled), adding_half, np.trunc(scaled)):
        assert (quantise(GGMLType.Q8_0, x)[:, 2:].view(np.int8) != wrong.astype(np.int8)).any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ggml_type", TYPES, ids=lambda t: t.name)
def test_what_is_not_a_number_is_read_back_as_such(ggml_type: GGMLType, target: str) -> None:
    k, v = normal(3, 1, 64), normal(3, 1, 32)
    k[0, 0, 5], k[1, 0, 40], k[2, 0, 63] = np.nan, np.inf, -np.inf
    keys, _ = stored(ggml_type, k, v, np.arange(3, dtype=np.int32), target)
    read = dequantise(ggml_type, keys[:3], 64)
    assert not np.isfinite(read[[0, 1, 2], [5, 40, 63]]).any()
    assert np.isfinite(read[0, 32:]).all()
    assert np.isfinite(read[1, :32]).all()


@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.F16], ids=lambda t: t.name)
def test_any_width_in_float_types(ggml_type: GGMLType) -> None:
    k, v = normal(2, 3, 21), normal(2, 3, 5, seed=1)
    cells = np.array([7, 3], np.int32)
    for rows, region in zip((k, v), stored(ggml_type, k, v, cells, TARGETS[0]), strict=True):
        assert same_bits(region[cells], quantise(ggml_type, rows).reshape(2, -1))
        assert (np.delete(region, cells, axis=0) == 0xAB).all()


def test_chunks_write_their_own_cells() -> None:
    n = 4
    k, v = normal(n, N_HEADS, HEAD_DIM), normal(n, N_HEADS, VALUE_DIM, seed=1)
    cells = np.array([9, 1, 4, 0], np.int32)
    kernel = trace_kv_store(StoreShape(N_HEADS, HEAD_DIM, VALUE_DIM, GGMLType.Q8_0, GGMLType.F32))
    widths = ((HEAD_DIM, GGMLType.Q8_0), (VALUE_DIM, GGMLType.F32))
    regions = [np.full((10, cell_bytes(N_HEADS, *each)), 0xAB, np.uint8) for each in widths]
    inputs = {StepWord.CELLS: cells}
    check_chunks_are_disjoint(
        lambda chunks, outputs: run_kernel(kernel, [k, v, *outputs], chunks, n_tokens=n, inputs=inputs), regions, n
    )
