"""Embedding of the CPU backend: the bits of `dequantise`, for every type of table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import INTERPRETER, TARGETS, aligned, check_chunks_are_disjoint, run_kernel, same_bits
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.embedding import SCRATCH_BYTES, trace_embedding, trace_embedding_float
from minfer.backends.cpu.ops.matmul.floats import FloatShape
from minfer.backends.cpu.panels.floats import FLOAT_TYPES, pack_float, packed_float_bytes
from minfer.backends.cpu.panels.pack import pack, packable_types, packed_bytes, panel_format
from minfer.quants import GGMLType, block_geometry, dequantise
from minfer.simd import KernelIR
from packed_rows import random_rows

N_ROWS = 37  # the last panel is not full
TOKENS = np.array([36, 0, 17, 16, 15, 17], np.int32)
QUANTISED = [each.name for each in packable_types()]


def width_of(ggml_type: GGMLType) -> int:
    """Two units of a panel at least, and no power of two where blocks are small."""
    return 96 if block_geometry(ggml_type).n_values == 32 else 512


def table(name: str) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Panels, and the rows that they stand for."""
    ggml_type = GGMLType[name]
    width = width_of(ggml_type)
    rows = random_rows(ggml_type, N_ROWS, width)
    panels = aligned_zeros(packed_bytes(ggml_type, N_ROWS, width))
    pack(ggml_type, rows, width, panels)
    return panels, dequantise(ggml_type, rows, width)


def embed(kernel: KernelIR, panels: NDArray[np.uint8], width: int, target: str) -> NDArray[np.float32]:
    y = np.full((len(TOKENS) + 1, width), 7.0, np.float32)
    inputs = {StepWord.TOKENS: TOKENS}
    run_kernel(
        kernel, [panels, y], range(len(TOKENS)), n_tokens=len(TOKENS), inputs=inputs, target=target,
        scratch_bytes=SCRATCH_BYTES,
    )  # fmt: skip
    assert (y[-1] == 7.0).all()
    return y[:-1]


@pytest.mark.parametrize("name", QUANTISED)
def test_rows_have_the_bits_of_dequantise(name: str) -> None:
    panels, rows = table(name)
    kernel = trace_embedding(panel_format(GGMLType[name]), rows.shape[1])
    assert same_bits(embed(kernel, panels, rows.shape[1], TARGETS[0]), rows[TOKENS])


@pytest.mark.parametrize("target", [*TARGETS[1:], INTERPRETER])
@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q6_K", "Q2_K", "IQ2_XS"])
def test_on_every_target_and_interpreted(name: str, target: str) -> None:
    panels, rows = table(name)
    kernel = trace_embedding(panel_format(GGMLType[name]), rows.shape[1])
    assert same_bits(embed(kernel, panels, rows.shape[1], target), rows[TOKENS])


@pytest.mark.parametrize("target", [*TARGETS, INTERPRETER])
@pytest.mark.parametrize("ggml_type", FLOAT_TYPES, ids=lambda each: each.name)
def test_tables_of_floats(ggml_type: GGMLType, target: str) -> None:
    width = 35
    n_bytes = 4 if ggml_type is GGMLType.F32 else 2
    values = np.random.default_rng(1).standard_normal((N_ROWS, width)).astype(np.float32)
    data = (values.view(np.uint32) >> 16).astype(np.uint16) if ggml_type is GGMLType.BF16 else values
    rows = aligned(data.astype(np.float16) if ggml_type is GGMLType.F16 else data).view(np.uint8)
    assert rows.shape == (N_ROWS, n_bytes * width)
    panels = aligned_zeros(packed_float_bytes(ggml_type, N_ROWS, width))
    pack_float(ggml_type, rows, width, panels)
    kernel = trace_embedding_float(FloatShape(ggml_type, width, StepWord.N_TOKENS))
    assert same_bits(embed(kernel, panels, width, target), dequantise(ggml_type, rows, width)[TOKENS])


def test_chunks_write_their_own_rows() -> None:
    panels, rows = table("Q4_K")
    kernel = trace_embedding(panel_format(GGMLType.Q4_K), rows.shape[1])
    inputs = {StepWord.TOKENS: TOKENS}
    check_chunks_are_disjoint(
        lambda chunks, outputs: run_kernel(kernel, [panels, *outputs], chunks, n_tokens=6, inputs=inputs),
        [np.full((6, rows.shape[1]), 7.0, np.float32)],
        n_chunks=6,
    )


@pytest.mark.parametrize(("name", "change"), [("Q4_0", {"zero": 4}), ("Q4_K", {"header_bytes": 0})])
def test_a_format_that_is_wrong_in_one_thing_is_noticed(name: str, change: dict[str, int]) -> None:
    panels, rows = table(name)
    wrong = replace(panel_format(GGMLType[name]), **change)
    assert not same_bits(embed(trace_embedding(wrong, rows.shape[1]), panels, rows.shape[1], TARGETS[0]), rows[TOKENS])
