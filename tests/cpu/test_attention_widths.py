"""Attention for the widths of heads that models have, and for some that none has, over every type of cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_runner import F16, F32, Q8_0, by_splits, by_tiles, check, make_step, running_on
from cpu_runner import INTERPRETER, TARGETS, same_bits
from minfer.backends.cpu.ops.attention.kernels import AttentionShape
from minfer.quants import GGMLType
from minfer.simd import target_named

# A run of tokens that are done together, over the border of a page, and tokens alone.
VISIBLE = [60, 61, 62, 63, 64, 65, 66, 150, 1]
STARTS = [0, 0, 0, 0, 0, 0, 0, 1, 2]
WIDTHS = {
    F32: (32, 48, 80, 96, 128, 256),
    F16: (40, 64, 80, 112, 192, 256),
    Q8_0: (32, 64, 96, 128, 192, 256),  # which stores 32 values together: models with other heads are refused
}


def shape_of(head_dim: int, value_dim: int, k_type: GGMLType, v_type: GGMLType) -> AttentionShape:
    return AttentionShape(4, 2, head_dim, value_dim, k_type, v_type, float(np.float32(head_dim**-0.5)), None, min_run=2)


def check_paths(shape: AttentionShape, target: str) -> None:
    """Both paths on a target, with its registers: right, and the same bits."""
    vector_bytes = target_named(target).vector_bytes
    step = make_step(replace(shape, vector_bytes=vector_bytes), VISIBLE, starts=STARTS)
    assert len(VISIBLE) - 2 >= shape.min_run
    tiles = by_tiles(step, running_on(target))
    check(step, tiles)
    assert same_bits(tiles, by_splits(step, running_on(target)))


@pytest.mark.parametrize(("ggml_type", "head_dim"), [(of, width) for of in WIDTHS for width in WIDTHS[of]], ids=str)
def test_every_width_of_heads(ggml_type: GGMLType, head_dim: int) -> None:
    check_paths(shape_of(head_dim, head_dim, ggml_type, ggml_type), TARGETS[0])


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "k_type", "v_type"),
    [(192, 128, F16, Q8_0), (96, 64, Q8_0, F32), (20, 36, F32, F16), (7, 1, F16, F32), (1, 50, F32, F32)],
    ids=str,
)
def test_keys_and_values_of_different_widths(head_dim: int, value_dim: int, k_type: GGMLType, v_type: GGMLType) -> None:
    check_paths(shape_of(head_dim, value_dim, k_type, v_type), TARGETS[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("head_dim", "value_dim", "k_type", "v_type"), [(40, 40, F16, F16), (96, 256, Q8_0, Q8_0)], ids=str
)
def test_every_target(head_dim: int, value_dim: int, k_type: GGMLType, v_type: GGMLType, target: str) -> None:
    shape = shape_of(head_dim, value_dim, k_type, v_type)
    check_paths(shape, target)
    step = make_step(shape, VISIBLE, starts=STARTS)
    there = replace(step, shape=replace(shape, vector_bytes=target_named(target).vector_bytes))
    assert same_bits(by_tiles(step), by_tiles(there, running_on(target)))


@pytest.mark.parametrize(("head_dim", "value_dim", "k_type", "v_type"), [(32, 32, Q8_0, Q8_0), (12, 40, F32, F16)])
def test_the_interpreter(head_dim: int, value_dim: int, k_type: GGMLType, v_type: GGMLType) -> None:
    """Every access is checked: also that the memory that is asked for is large enough, and that no page is looked up
    after the last one, which a token sees to its end."""
    shape = shape_of(head_dim, value_dim, k_type, v_type)
    step = make_step(replace(shape, n_heads=2), [62, 66, 64], starts=[0, 0, 2], pages=[1, 0, 2])
    want = by_tiles(step)
    assert same_bits(want, by_tiles(step, running_on(INTERPRETER)))
    assert same_bits(want[2:], by_splits(step.tokens(2, 3), running_on(INTERPRETER)))
