"""SelectRows of the CPU backend: rows by index, in any order and more than once."""

from __future__ import annotations

import numpy as np
import pytest

from cpu_runner import INTERPRETER, TARGETS, check_chunks_are_disjoint, normal, run_kernel, same_bits
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.select_rows import trace_select_rows

ROWS = np.array([4, 0, 4], np.int32)


@pytest.mark.parametrize("target", [*TARGETS, INTERPRETER])
@pytest.mark.parametrize("width", [16, 35])
def test_copies_the_rows_that_are_asked_for(width: int, target: str) -> None:
    x, y = normal(5, width), np.full((4, width), 7.0, np.float32)
    inputs = {StepWord.OUTPUT_ROWS: ROWS}
    run_kernel(trace_select_rows(width), [x, y], range(3), n_tokens=5, n_outputs=3, inputs=inputs, target=target)
    assert same_bits(y[:3], x[ROWS])
    assert (y[3] == 7.0).all()


def test_chunks_write_their_own_rows() -> None:
    x, kernel, inputs = normal(5, 19), trace_select_rows(19), {StepWord.OUTPUT_ROWS: ROWS}
    check_chunks_are_disjoint(
        lambda chunks, outputs: run_kernel(kernel, [x, *outputs], chunks, n_tokens=5, n_outputs=3, inputs=inputs),
        [np.full((3, 19), 7.0, np.float32)],
        n_chunks=3,
    )
