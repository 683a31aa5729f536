"""The integer matmul: right within what float32 sums allow, and the same bits on every path, target and order of
chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, aligned, check_close, run_kernel, same_bits
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu.activations import quantise_rows, unpack_rows
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.kernels.matmul import MatMulShape, trace_direct, trace_tiles
from minfer.backends.cpu.kernels.matmul_float import FloatShape, pack_float, packed_float_bytes, trace_float
from minfer.backends.cpu.pack import pack, packed_bytes, panel_format
from minfer.graph.ops import ActivationKind
from minfer.quants import GGMLType, dequantise, quantise

UNIT = 2.0**-24
COMPACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
WIDE = ("Q2_K", "Q3_K", "IQ4_NL")


@dataclass(frozen=True)
class Case:
    """A weight, activations, and what float64 makes of them."""

    ggml_type: GGMLType
    n_rows: int
    n_columns: int
    packed: NDArray[np.uint8]
    values: NDArray[np.float64]
    x: NDArray[np.float64]
    records: NDArray[np.uint8]

    @property
    def n_tokens(self) -> int:
        return len(self.x)


def make_case(ggml_type: GGMLType, n_rows: int, n_columns: int, n_tokens: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    source = GGMLType.Q4_0 if ggml_type is GGMLType.IQ4_NL else ggml_type  # blocks of equal layout; any bytes are valid
    rows = quantise(source, (rng.standard_normal((n_rows, n_columns)) * 0.1).astype(np.float32))
    packed = aligned_zeros(packed_bytes(ggml_type, n_rows, n_columns))
    pack(ggml_type, rows, n_columns, packed)
    # The kernels may read the records of a whole tile.
    x = rng.standard_normal((n_tokens + 16, n_columns)).astype(np.float32)
    records = aligned(quantise_rows(x))
    parts = unpack_rows(records, n_columns)
    exact = (parts.q.reshape(len(x), -1, 32) * parts.d.astype(np.float64)[..., None]).reshape(x.shape)[:n_tokens]
    values = dequantise(ggml_type, rows, n_columns).astype(np.float64)
    return Case(ggml_type, n_rows, n_columns, packed, values, exact, records)


def shape_of(case: Case) -> MatMulShape:
    return MatMulShape(panel_format(case.ggml_type), case.n_columns, StepWord.N_TOKENS)


def run(
    case: Case,
    path: str,
    *,
    panels_per_part: int = 2,
    target: str = TARGETS[0],
    shape: MatMulShape | None = None,
    bias: NDArray[np.float32] | None = None,
    second: NDArray[np.uint8] | None = None,
    backwards: bool = False,
) -> NDArray[np.float32]:
    shape = shape or shape_of(case)
    n_panels = -(-case.n_rows // 16)
    n_parts = -(-n_panels // panels_per_part)
    y = np.full((case.n_tokens + 2, case.n_rows), 7.0, np.float32)
    if path == "tiles":
        kernel, n_chunks = trace_tiles(shape), n_parts
    else:
        n_tile_rows = int(path.removeprefix("direct"))
        kernel, n_chunks = trace_direct(shape, n_tile_rows), n_parts * -(-case.n_tokens // n_tile_rows)
    chunks = range(n_chunks)
    arguments = [case.packed, second, case.records, y, bias, case.n_rows, n_panels, panels_per_part, n_parts]
    run_kernel(kernel, arguments, reversed(chunks) if backwards else chunks, n_tokens=case.n_tokens, target=target)
    assert (y[case.n_tokens :] == 7.0).all(), "a row that the step does not have was written"
    return y[: case.n_tokens]


def bound(case: Case) -> NDArray[np.float64]:
    """Each group of columns adds at most three roundings to a sum of magnitudes that bounds every partial sum.

    For a group, s * scale * d is rounded twice before it is added, and an offset's share once more.
    """
    n_groups = case.n_columns // 16
    # Scales and offsets can be larger than the values that they cancel to: bound their products, not the values.
    magnitudes = np.abs(case.x) @ (np.abs(case.values) + np.abs(case.values).max(axis=1, keepdims=True)).T
    return (n_groups + 6) * 4 * UNIT * magnitudes


@pytest.mark.parametrize("name", [*COMPACT, *WIDE])
@pytest.mark.parametrize(("n_rows", "n_tokens"), [(16, 1), (40, 3), (33, 5), (17, 13), (64, 25)])
def test_every_path_is_right_and_gives_the_same_bits(name: str, n_rows: int, n_tokens: int) -> None:
    case = make_case(GGMLType[name], n_rows, 512, n_tokens, seed=n_rows)
    results = [run(case, path) for path in ("direct1", "direct4", "tiles")]
    check_close(results[0], case.x @ case.values.T, bound(case))
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q5_0", "Q6_K"])
def test_every_target_gives_the_same_bits(name: str, target: str) -> None:
    case = make_case(GGMLType[name], 24, 256, 6)
    for path in ("direct1", "tiles"):
        assert same_bits(run(case, path), run(case, path, target=target))


def test_parts_and_order_do_not_matter() -> None:
    case = make_case(GGMLType.Q4_K, 100, 512, 14)
    want = run(case, "tiles")
    for panels_per_part in (1, 3, 7):
        for path in ("direct1", "direct4", "tiles"):
            assert same_bits(want, run(case, path, panels_per_part=panels_per_part, backwards=True))


def test_a_token_has_the_same_bits_alone_and_among_others() -> None:
    case = make_case(GGMLType.Q5_0, 48, 512, 27)
    want = run(case, "tiles")
    for token in (0, 11, 12, 26):
        alone = replace(case, x=case.x[token : token + 1], records=aligned(case.records[token : token + 5]))
        assert same_bits(want[token : token + 1], run(alone, "direct1"))


def test_bias_and_gate() -> None:
    case, other = make_case(GGMLType.Q4_1, 33, 512, 7), make_case(GGMLType.Q4_1, 33, 512, 7, seed=9)
    bias = np.random.default_rng(1).standard_normal(33).astype(np.float32)
    plain, up = run(case, "tiles"), run(replace(case, packed=other.packed), "tiles")
    for path in ("direct1", "direct4", "tiles"):
        with_bias = run(case, path, shape=replace(shape_of(case), has_bias=True), bias=bias)
        assert same_bits(with_bias, plain + bias)
        for kind in ActivationKind:
            gated = run(case, path, shape=replace(shape_of(case), gate=kind), second=other.packed)
            wide = plain.astype(np.float64)
            if kind is ActivationKind.SILU:
                activated = wide / (1 + np.exp(-wide))
            else:
                activated = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
            # exp is within 2 units, its argument for GELU within 4: the quotient and the product add one each.
            slack = 16 * UNIT * (np.abs(activated) + np.abs(wide) * 1e-3) * np.abs(up) + 1e-30
            check_close(gated, activated * up, slack * 4)


def test_a_wrong_zero_is_noticed() -> None:
    case = make_case(GGMLType.Q5_0, 16, 512, 2)
    shape = shape_of(case)
    wrong = replace(shape, panel=replace(shape.panel, zero=8))
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(run(case, "direct1", shape=wrong), case.x @ case.values.T, bound(case))


@pytest.mark.parametrize("ggml_type", [GGMLType.F32, GGMLType.F16, GGMLType.BF16], ids=lambda t: t.name)
@pytest.mark.parametrize(("n_rows", "n_columns", "n_tokens"), [(16, 64, 1), (33, 61, 6), (5, 3, 9)])
def test_float_weights(ggml_type: GGMLType, n_rows: int, n_columns: int, n_tokens: int) -> None:
    rng = np.random.default_rng(n_rows)
    rows = quantise(ggml_type, rng.standard_normal((n_rows, n_columns)).astype(np.float32))
    packed = aligned_zeros(packed_float_bytes(ggml_type, n_rows, n_columns))
    pack_float(ggml_type, rows, n_columns, packed)
    x = aligned(rng.standard_normal((n_tokens, n_columns)).astype(np.float32))
    values = dequantise(ggml_type, rows, n_columns).astype(np.float64)
    n_panels = -(-n_rows // 16)
    shape = FloatShape(ggml_type, n_columns, StepWord.N_TOKENS)
    results = []
    for target in TARGETS:
        for n_tile_rows in (1, 4):
            y = np.full((n_tokens + 1, n_rows), 7.0, np.float32)
            n_chunks = n_panels * -(-n_tokens // n_tile_rows)
            arguments = [packed, None, x, y, None, n_rows, n_panels, 1, n_panels]
            run_kernel(trace_float(shape, n_tile_rows), arguments, range(n_chunks), n_tokens=n_tokens, target=target)
            assert (y[n_tokens:] == 7.0).all()
            results.append(y[:n_tokens])
    magnitudes = np.abs(x.astype(np.float64)) @ np.abs(values).T
    check_close(results[0], x.astype(np.float64) @ values.T, (n_columns / 4 + 4) * UNIT * magnitudes)
    assert all(same_bits(results[0], other) for other in results[1:])
