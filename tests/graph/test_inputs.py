"""The inputs of a step: nothing that a kernel would read or write out of bounds with gets through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minfer.errors import ContextError, GraphError
from minfer.graph import INPUT_SPECS, PAGE_SIZE, StepInputs, Symbol

BOUNDS = {Symbol.N_TOKENS: 4, Symbol.N_OUTPUTS: 2, Symbol.N_PAGES: 3, Symbol.N_CELLS: 4 * PAGE_SIZE}
N_CTX = 100


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


STEP = StepInputs(
    tokens=ints(5, 0, 9),
    positions=ints(64, 65, 0),
    cells=ints(128, 129, 0),
    spans=ints([0, 65], [0, 66], [2, 1]),
    pages=ints(3, 2, 0),
    output_rows=ints(1, 2),
)


def check(step: StepInputs) -> None:
    step.check(n_vocab=10, n_ctx=N_CTX, bounds=BOUNDS)


def test_a_sound_step_passes() -> None:
    check(STEP)
    check(replace(STEP, output_rows=ints()))
    check(replace(STEP, spans=ints([0, 128], [0, 66], [2, 64])))
    check(replace(STEP, cells=ints(255, 254, 253), pages=ints(3, 3, 3), positions=ints(99, 0, 1)))
    assert STEP.n_tokens == 3
    assert STEP.n_outputs == 2
    assert STEP.sizes() == {Symbol.N_TOKENS: 3, Symbol.N_OUTPUTS: 2, Symbol.N_PAGES: 3}
    assert STEP.arrays().keys() == INPUT_SPECS.keys()


def test_a_position_outside_of_the_context_names_both_numbers() -> None:
    with pytest.raises(ContextError, match=r"position 100 .* 100") as caught:
        check(replace(STEP, positions=ints(1, 100, 2)))
    assert (caught.value.n_positions, caught.value.n_ctx) == (101, 100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ints(5, 0, 10)}, r"tokens holds 10, outside \[0, 10\)"),
        ({"tokens": ints(5, -1, 9)}, r"tokens holds -1, outside"),
        ({"positions": ints(64, -3, 0)}, r"positions holds -3, outside"),
        ({"cells": ints(128, 256, 0)}, r"cells holds 256, outside \[0, 256\)"),
        ({"cells": ints(-1, 129, 0)}, r"cells holds -1, outside"),
        ({"pages": ints(3, 4, 0)}, r"pages holds 4, outside \[0, 4\)"),
        ({"pages": ints(3, -1, 0)}, r"pages holds -1, outside"),
        ({"output_rows": ints(1, 3)}, r"output_rows holds 3, outside \[0, 3\)"),
        ({"output_rows": ints(-1)}, r"output_rows holds -1, outside"),
        ({"spans": ints([0, 65], [0, 66], [-1, 1])}, "spans reach outside"),
        ({"spans": ints([0, 65], [0, 66], [2, 0])}, "spans reach outside"),
        ({"spans": ints([0, 65], [0, 66], [2, 65])}, "spans reach outside"),
        ({"spans": ints([0, 65], [0, 66], [3, 1])}, "spans reach outside"),
        ({"spans": ints([0, 65], [0, 2**31 - 1], [2, 1])}, "spans reach outside"),
        ({"spans": ints([0, 65], [2**31 - 1, 65], [2, 1])}, "spans reach outside"),
        ({"spans": ints([0, 65], [0, 66])}, r"spans must be int32\[3, 2\], not int32\[2, 2\]"),
        ({"cells": ints(1, 2)}, r"cells must be int32\[3\], not int32\[2\]"),
        ({"tokens": ints(5, 0, 9).astype(np.int64)}, "tokens must be int32"),
        ({"positions": ints(64, 65, 0).astype(np.float32)}, "positions must be int32"),
        ({"output_rows": ints(0, 1, 2)}, "n_outputs = 3, and the plan was made for at most 2"),
        ({"pages": ints(3, 2, 0, 0)}, "n_pages = 4, and the plan was made for at most 3"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        check(replace(STEP, **changes))


def test_too_many_tokens_and_none() -> None:
    five = [ints(0, 1, 2, 3, 4)] * 3
    with pytest.raises(GraphError, match="n_tokens = 5, and the plan was made for at most 4"):
        check(StepInputs(*five, spans=ints(*[[0, 1]] * 5), pages=ints(0), output_rows=ints()))
    with pytest.raises(GraphError, match="at least one token"):
        check(StepInputs(*[ints()] * 3, spans=np.zeros((0, 2), np.int32), pages=ints(), output_rows=ints()))
