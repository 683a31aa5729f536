"""Rope of the CPU backend against the reference, alone and with the KV store in one entry."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import INTERPRETER, TARGETS, aligned, check_close, normal, run_kernel, same_bits
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops import rope_store
from minfer.backends.cpu.ops.kv_rows import cell_bytes
from minfer.backends.cpu.ops.kv_store import StoreShape, trace_kv_store
from minfer.backends.cpu.ops.rope import RopeShape, rope_table, trace_rope
from minfer.backends.cpu.ops.rope_store import trace_rope_store
from minfer.backends.reference.rope import rope
from minfer.graph.ops import Rope, RopeStyle
from minfer.quants import GGMLType

UNIT = 2.0**-24
POSITIONS = np.array([0, 1, 17, 4095, 100_000], np.int32)
N_HEADS = 3
Table = tuple[NDArray[np.float32], NDArray[np.float32]]


def make_op(style: RopeStyle, n_rot: int) -> Rope:
    return Rope(style, tuple(10_000.0 ** (-2 * i / n_rot) for i in range(n_rot // 2)), 1.25)


def tables(op: Rope, positions: NDArray[np.int32] = POSITIONS) -> Table:
    cos, sin = (np.full((len(positions) + 1, op.n_rot // 2), 9.0, np.float32) for _ in range(2))
    rope_table(op.frequencies, op.magnitude, positions, cos, sin)
    assert (cos[-1] == 9.0).all()
    assert (sin[-1] == 9.0).all()
    return cos, sin


def turned(op: Rope, x: NDArray[np.float32], target: str = TARGETS[0]) -> NDArray[np.float32]:
    y = aligned(np.full_like(x, 7.0))
    n, n_heads, head_dim = x.shape
    kernel = trace_rope(RopeShape(op.style, n_heads, head_dim, op.n_rot))
    run_kernel(kernel, [x, y, *tables(op)], range(n), n_tokens=n, target=target)
    return y


def bound(op: Rope, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """3 roundings of |a| + |b|, of a cos - b sin: a table's entry, a product and the sum are rounded once each."""
    pairs = np.arange(op.n_rot)
    partner = pairs ^ 1 if op.style is RopeStyle.INTERLEAVED else (pairs + op.n_rot // 2) % op.n_rot
    sizes = np.zeros(x.shape)
    sizes[..., : op.n_rot] = np.abs(x)[..., : op.n_rot].astype(np.float64) + np.abs(x)[..., partner]
    return 3 * (1 + 2.0**-20) * UNIT * op.magnitude * sizes


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("style", RopeStyle)
@pytest.mark.parametrize(("head_dim", "n_rot"), [(64, 64), (16, 8), (24, 24), (10, 6)])
def test_against_the_reference(style: RopeStyle, head_dim: int, n_rot: int, target: str) -> None:
    op, x = make_op(style, n_rot), normal(len(POSITIONS), N_HEADS, head_dim)
    want, allowed = rope(op, x, POSITIONS).astype(np.float64), bound(op, x)
    y = turned(op, x, target)
    check_close(y, want, allowed + UNIT * np.abs(want))
    assert same_bits(np.ascontiguousarray(y[..., n_rot:]), np.ascontiguousarray(x[..., n_rot:]))
    other = next(each for each in RopeStyle if each is not style)
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(turned(make_op(other, n_rot), x), want, allowed + UNIT * np.abs(want))


def test_angles_are_right_at_a_large_position() -> None:
    """In float32 the angle 100,000 * 0.9 alone is off by up to 0.004."""
    op = Rope(RopeStyle.INTERLEAVED, (0.9, 0.3))
    cos, sin = tables(op, np.array([100_000], np.int32))
    angles = np.array([90_000.0, 30_000.0])
    np.testing.assert_allclose(cos[0], np.cos(angles), atol=2.0**-24)
    np.testing.assert_allclose(sin[0], np.sin(angles), atol=2.0**-24)


def test_worked_speeds() -> None:
    op = Rope(RopeStyle.INTERLEAVED, (1.0, 0.01))
    cos, sin = tables(op, np.array([1], np.int32))
    np.testing.assert_allclose(cos[0], [0.540302, 0.999950], atol=5e-7)
    np.testing.assert_allclose(sin[0], [0.841471, 0.0099998], atol=5e-7)


@pytest.mark.parametrize("style", RopeStyle)
def test_interpreted_and_in_place_it_gives_the_same_bits(style: RopeStyle) -> None:
    op, x = make_op(style, 8), normal(5, N_HEADS, 12)
    want = turned(op, x)
    assert same_bits(turned(op, x, INTERPRETER), want)
    run_kernel(trace_rope(RopeShape(style, N_HEADS, 12, 8)), [x, x, *tables(op)], range(5), n_tokens=5)
    assert same_bits(x, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("ggml_type", "in_place"), [(GGMLType.F32, False), (GGMLType.Q8_0, True)])
def test_with_the_store_it_gives_the_bits_of_the_single_ops(ggml_type: GGMLType, in_place: bool, target: str) -> None:
    n, n_kv_heads, head_dim, value_dim = 5, 2, 64, 32
    op = make_op(RopeStyle.NON_INTERLEAVED, 48)
    q, k, v = normal(n, N_HEADS, head_dim), normal(n, n_kv_heads, head_dim, seed=1), normal(n, 2, value_dim, seed=2)
    cells = np.array([5, 0, 2, 7, 3], np.int32)
    inputs = {StepWord.CELLS: cells}
    store = StoreShape(n_kv_heads, head_dim, value_dim, ggml_type, GGMLType.F16)
    want_q, want_k = turned(op, q), turned(op, k)

    def regions() -> list[NDArray[np.uint8]]:
        widths = ((head_dim, ggml_type), (value_dim, GGMLType.F16))
        return [np.full((9, cell_bytes(n_kv_heads, *each)), 0xAB, np.uint8) for each in widths]

    want = regions()
    run_kernel(trace_kv_store(store), [want_k, v, *want], range(n), n_tokens=n, inputs=inputs)
    shapes = (RopeShape(op.style, n_heads, head_dim, op.n_rot) for n_heads in (N_HEADS, n_kv_heads))
    kernel, got = trace_rope_store(*shapes, store), regions()
    chunks = range(-(-n // rope_store.ROWS_PER_CHUNK))
    assert len(chunks) == 2
    y, z = (q, k) if in_place else (np.zeros_like(q), np.zeros_like(k))
    run_kernel(kernel, [q, y, k, z, v, *tables(op), *got], chunks, n_tokens=n, inputs=inputs, target=target)
    assert same_bits(y, want_q)
    assert same_bits(z, want_k)
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))
