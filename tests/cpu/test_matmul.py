"""The integer matmul: right within what float32 sums allow, and the same bits on every path, target and order of
chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, aligned, check_close, run_kernel, same_bits
from gate_reference import gate_and_bound
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.activations import quantise_rows, unpack_rows
from minfer.backends.cpu.convention import N_STEP_WORDS, StepWord
from minfer.backends.cpu.ops.matmul.quantised import MatMulShape, trace_direct, trace_direct_tiles, trace_tiles
from minfer.backends.cpu.panels.formats import PanelFormat, Registers
from minfer.backends.cpu.panels.pack import pack, packed_bytes, panel_format
from minfer.graph.ops import ActivationKind
from minfer.quants import GGMLType, dequantise, unpack
from minfer.simd import Kernel, KernelIR, Value, interpret
from minfer.simd.evaluate import fma
from packed_rows import moderate_rows, random_rows

UNIT = 2.0**-24
CLASSIC = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
K_FAMILY = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
WIDE = ("TQ2_0", "IQ2_XS")
"""One type for each wide panel: a scale for 32 columns, and for 16."""
PATHS = {"direct": trace_direct, "direct_tiles": trace_direct_tiles, "tiles": trace_tiles}


@dataclass(frozen=True)
class Case:
    """A weight, activations, and what float64 makes of them."""

    ggml_type: GGMLType
    n_rows: int
    n_columns: int
    packed: NDArray[np.uint8]
    values: NDArray[np.float64]
    magnitudes: NDArray[np.float64]
    """|scale * q| + |offset| for every value: what is added, before it cancels"""
    x: NDArray[np.float64]
    records: NDArray[np.uint8]

    @property
    def n_tokens(self) -> int:
        return len(self.x)

    @property
    def n_panels(self) -> int:
        return -(-self.n_rows // 16)

    @property
    def shape(self) -> MatMulShape:
        return MatMulShape(panel_format(self.ggml_type), self.n_columns, StepWord.N_TOKENS)

    def product(self) -> NDArray[np.float64]:
        return self.x @ self.values.T

    def bound(self) -> NDArray[np.float64]:
        """How far y may be from the product with the dequantised weight.

        Each group of columns adds one or two terms (s * scale * d, offset * sum) by fma, so a partial sum is rounded
        once a term; a term's own factor (scale * d, or sum * d) is rounded once. The dequantised weight, which this is
        compared with, has two roundings of its own.
        """
        panel = self.shape.panel
        n_terms = self.n_columns // 32 * panel.n_groups * (1 + panel.has_offset)
        return (n_terms + 3) * UNIT * (np.abs(self.x) @ self.magnitudes.T) * 1.001  # for what is of second order


def make_case(name: str, n_rows: int, n_columns: int, n_tokens: int, seed: int = 0) -> Case:
    rows = moderate_rows(GGMLType[name], n_rows, n_columns, seed)
    x = np.random.default_rng(seed).standard_normal((n_tokens, n_columns)).astype(np.float32)
    return case_of(GGMLType[name], rows, x)


def case_of(ggml_type: GGMLType, rows: NDArray[np.uint8], x: NDArray[np.float32]) -> Case:
    n_rows, (n_tokens, n_columns) = len(rows), x.shape
    packed = aligned_zeros(packed_bytes(ggml_type, n_rows, n_columns))
    pack(ggml_type, rows, n_columns, packed)
    # The kernels may read the records of a whole tile.
    records = aligned(quantise_rows(np.concatenate([x, np.ones((16, n_columns), np.float32)])))
    activations = unpack_rows(records, n_columns)
    exact = activations.q.reshape(len(records), -1, 32) * activations.d.astype(np.float64)[..., None]
    parts = unpack(ggml_type, rows, n_columns)
    magnitudes = np.abs(parts.scales.astype(np.float64)[..., None] * parts.quants)
    if parts.offsets is not None:
        magnitudes += np.abs(parts.offsets)[..., None]
    return Case(
        ggml_type=ggml_type,
        n_rows=n_rows,
        n_columns=n_columns,
        packed=packed,
        values=dequantise(ggml_type, rows, n_columns).astype(np.float64),
        magnitudes=magnitudes.reshape(n_rows, n_columns),
        x=exact.reshape(len(records), n_columns)[:n_tokens],
        records=records,
    )


@cache
def kernel_of(path: str, shape: MatMulShape) -> KernelIR:
    return PATHS[path](shape)


def n_chunks_of(path: str, n_parts: int, n_tokens: int) -> int:
    return n_parts * (n_tokens if path == "direct" else 1)


def run(
    case: Case,
    path: str,
    *,
    panels_per_part: int = 2,
    target: str = TARGETS[0],
    shape: MatMulShape | None = None,
    bias: NDArray[np.float32] | None = None,
    second: NDArray[np.uint8] | None = None,
    order: Iterable[int] | None = None,
) -> NDArray[np.float32]:
    """y as some chunks (all of them unless `order` says which) leave it, NaN where nothing was written."""
    n_parts = -(-case.n_panels // panels_per_part)
    y = np.full((case.n_tokens + 2, case.n_rows), np.nan, np.float32)
    arguments = [case.packed, second, case.records, y, bias, case.n_rows, case.n_panels, panels_per_part, n_parts]
    chunks = range(n_chunks_of(path, n_parts, case.n_tokens)) if order is None else order
    run_kernel(kernel_of(path, shape or case.shape), arguments, chunks, n_tokens=case.n_tokens, target=target)
    assert np.isnan(y[case.n_tokens :]).all(), "a row that the step does not have was written"
    return y[: case.n_tokens]


@pytest.mark.parametrize("name", [*CLASSIC, *K_FAMILY])
@pytest.mark.parametrize(("n_rows", "n_tokens"), [(16, 1), (33, 5), (64, 25)])
def test_every_path_is_right_and_gives_the_same_bits(name: str, n_rows: int, n_tokens: int) -> None:
    case = make_case(name, n_rows, 96 if name in CLASSIC else 512, n_tokens, seed=n_rows)
    results = [run(case, path) for path in PATHS]
    check_close(results[0], case.product(), case.bound())
    assert all(same_bits(results[0], other) for other in results[1:])


def by_definition(case: Case, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The arithmetic of the kernel's docstring in NumPy, one rounding after the other."""
    parts, x = unpack(case.ggml_type, rows, case.n_columns), unpack_rows(case.records, case.n_columns)
    size = parts.quants.shape[2]
    weights, scales = parts.quants.reshape(case.n_rows, -1, size), parts.scales.reshape(case.n_rows, -1)
    y = np.zeros((case.n_tokens, case.n_rows), np.float32)
    for group in range(weights.shape[1]):
        q = x.q[: case.n_tokens, group * size : (group + 1) * size].astype(np.int32)
        d = x.d[: case.n_tokens, group * size // 32, None]
        y = fma((q @ weights[:, group].astype(np.int32).T).astype(np.float32), scales[:, group] * d, y)
        if parts.offsets is not None:
            total = q.sum(axis=1, dtype=np.int32, keepdims=True).astype(np.float32)
            y = fma(parts.offsets.reshape(case.n_rows, -1)[:, group], total * d, y)
    return y


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q2_K", "Q5_K", "Q6_K"])
def test_the_sums_are_those_of_the_definition_to_the_bit(name: str) -> None:
    case = make_case(name, 33, 512, 6, seed=5)
    want = by_definition(case, moderate_rows(GGMLType[name], 33, 512, seed=5))
    assert all(same_bits(want, run(case, path)) for path in PATHS)


@pytest.mark.parametrize("name", [*CLASSIC, *K_FAMILY, *WIDE])
def test_every_column_alone_with_scales_of_every_size(name: str) -> None:
    """Each token is 1 at one column, so that a small group is not lost in the sum of large ones."""
    n_columns = 32 if name in CLASSIC else 256
    case = case_of(GGMLType[name], random_rows(GGMLType[name], 48, n_columns), np.eye(n_columns, dtype=np.float32))
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    check_close(run(case, "direct"), case.product(), case.bound() + 127 * 16 * smallest)


def test_every_exponent_of_mxfp4() -> None:
    """Also the two that make a subnormal scale. x is 127, so that its d is 1 and all is exact; larger ones overflow."""
    rows = np.zeros((244, 17), np.uint8)
    rows[:, 0] = np.arange(244)
    rows[:, 1:] = np.arange(16) * 17
    case = case_of(GGMLType.MXFP4, rows, np.eye(32, dtype=np.float32) * 127)
    check_close(run(case, "direct"), case.product(), 0)


@pytest.mark.parametrize("name", WIDE)
def test_types_without_a_panel_of_their_own(name: str) -> None:
    case = make_case(name, 33, 512, 6)
    assert case.shape.panel.name.startswith("wide")
    results = [run(case, path) for path in PATHS]
    check_close(results[0], case.product(), case.bound())
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("name", [*CLASSIC, *K_FAMILY, *WIDE])
def test_every_target_gives_the_same_bits(name: str, target: str) -> None:
    case = make_case(name, 24, 256, 6)
    want = run(case, "direct")
    assert same_bits(want, run(case, "direct", target=target))
    if name in ("Q4_1", "Q6_K"):  # the tiles differ by groups and offsets alone, and take long to compile
        assert same_bits(want, run(case, "tiles", target=target))


@pytest.mark.parametrize("name", [*CLASSIC, *K_FAMILY, *WIDE])
def test_the_interpreter_gives_the_same_bits(name: str) -> None:
    case = make_case(name, 17, 32 if name in CLASSIC else 256, 2)
    want = run(case, "direct")
    step = np.zeros(N_STEP_WORDS, np.int64)
    step[StepWord.N_TOKENS] = 2
    for path in PATHS:
        if path == "direct_tiles" and name not in ("Q5_1", "Q6_K"):
            continue  # the same as direct, with more tokens
        y = np.full((2, 17), np.nan, np.float32)
        addresses = [array.ctypes.data for array in (case.packed, case.records, y)]
        block = np.array([addresses[0], 0, addresses[1], addresses[2], 0, 17, 2, 3, 1], np.int64)
        # One part, which would have room for more panels than there are.
        scratch = aligned_zeros(2 * case.shape.unpacked_panel_bytes)
        for chunk in range(n_chunks_of(path, 1, 2)):
            arrays = [case.packed, case.records, y]
            interpret(kernel_of(path, case.shape), block, step, chunk, scratch, buffers=arrays)
        assert same_bits(y, want), path


@pytest.mark.parametrize("n_tokens", [*range(1, 14), 25])
def test_tiles_parts_and_the_order_of_chunks_do_not_matter(n_tokens: int) -> None:
    case = make_case("Q4_K", 100, 256, n_tokens)
    want = run(case, "direct")
    rng = np.random.default_rng(n_tokens)
    for path in ("direct_tiles", "tiles"):
        for panels_per_part in (1, 3, 7):
            n_parts = -(-7 // panels_per_part)
            order = rng.permutation(n_chunks_of(path, n_parts, n_tokens)).tolist()
            assert same_bits(want, run(case, path, panels_per_part=panels_per_part, order=order))


@pytest.mark.parametrize("path", PATHS)
def test_chunks_write_what_no_other_writes(path: str) -> None:
    case = make_case("Q4_0", 40, 32, 6)
    n_writers = np.zeros((6, 40), int)
    for chunk in range(n_chunks_of(path, 2, 6)):
        n_writers += ~np.isnan(run(case, path, order=[chunk]))
    assert (n_writers == 1).all()


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    case = make_case("Q5_0", 48, 512, 27)
    want = run(case, "tiles")
    for token in (0, 11, 12, 26):
        alone = replace(case, x=case.x[token : token + 1], records=aligned(case.records[token : token + 5]))
        assert same_bits(want[token : token + 1], run(alone, "direct"))


@pytest.mark.parametrize("path", PATHS)
def test_bias_and_gate(path: str) -> None:
    case, other = make_case("Q4_1", 33, 256, 7), make_case("Q4_1", 33, 256, 7, seed=9)
    bias = aligned(np.random.default_rng(1).standard_normal(33).astype(np.float32))
    plain, up = run(case, "direct"), run(replace(case, packed=other.packed), "direct")
    assert same_bits(run(case, path, shape=replace(case.shape, has_bias=True), bias=bias), plain + bias)
    for kind in ActivationKind:
        gated = run(case, path, shape=replace(case.shape, gate=kind), second=other.packed)
        check_close(gated, *gate_and_bound(kind, plain, up))


def altered(panel: PanelFormat, change: str) -> PanelFormat:
    """A format that is wrong in one thing."""

    def emit(k: Kernel, block: Value, header: tuple[Value, ...]) -> Registers:
        right = panel.emit_block(k, block, header)
        match change:
            case "groups exchanged":
                return replace(right, scales=right.scales[::-1])
            case "offsets exchanged":
                return replace(right, offsets=right.offsets[::-1])
            case "columns exchanged":
                return replace(right, quants=right.quants[::-1])
        return replace(right, offsets=())

    if change == "another zero":
        return replace(panel, zero=8)
    return replace(panel, emit_block=emit, has_offset=panel.has_offset and change != "no offset")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Q5_0", "another zero"),
        ("Q3_K", "another zero"),
        ("MXFP4", "another zero"),
        ("Q6_K", "groups exchanged"),
        ("Q2_K", "groups exchanged"),
        ("Q2_K", "offsets exchanged"),
        ("Q4_1", "no offset"),
        ("Q4_K", "no offset"),
        ("IQ4_NL", "columns exchanged"),
    ],
)
def test_a_format_that_is_wrong_in_one_thing_is_noticed(name: str, change: str) -> None:
    case = make_case(name, 16, 256, 2)
    wrong = replace(case.shape, panel=altered(case.shape.panel, change))
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(run(case, "direct", shape=wrong), case.product(), case.bound())


def test_sums_in_another_order_have_other_bits() -> None:
    """What the comparisons of bits rest on: the columns from the end give sums within the bound, but not the same."""
    case = make_case("Q8_0", 64, 512, 4)
    packed = case.packed.reshape(4, 16, -1)[:, ::-1]
    q, parts = case.records.copy(), unpack_rows(case.records, 512)
    backwards = unpack_rows(q, 512)
    backwards.q[:] = parts.q.reshape(-1, 16, 32)[:, ::-1].reshape(-1, 512)
    for to, source in ((backwards.d, parts.d), (backwards.s, parts.s), (backwards.n32, parts.n32)):
        to[:] = source[:, ::-1]
    got = run(replace(case, packed=aligned(packed), records=aligned(q)), "direct")
    check_close(got, case.product(), case.bound())
    assert not same_bits(got, run(case, "direct"))
