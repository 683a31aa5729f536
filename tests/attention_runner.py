"""Runs attention of the CPU backend by hand, on every path, and checks it against the reference on the same cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cpu_runner import TARGETS, Array, aligned, check_close, run_kernel
from minfer.backends.cpu.convention import StepWord
from minfer.backends.cpu.ops.attention import kernels as attention
from minfer.backends.cpu.ops.attention.kernels import (
    MAX_SPLIT_ROWS,
    TILE_TOKENS,
    AttentionShape,
    trace_attention_combine,
    trace_attention_split,
    trace_attention_tiles,
    trace_attention_tokens,
)
from minfer.backends.reference.attention import attend
from minfer.quants import GGMLType, dequantise, quantise
from minfer.simd import KernelIR

F32, F16, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q8_0
SHAPE = AttentionShape(6, 2, 16, 16, F32, F32, 0.25, None, min_run=4)
UNIT = 2.0**-24

Run = Callable[[KernelIR, Sequence[Array | int | None], Iterable[int], "Step", int], None]


@dataclass(frozen=True)
class Step:
    """Queries, a cache, and what each token sees."""

    shape: AttentionShape
    q: NDArray[np.float32]
    k: NDArray[np.uint8]
    v: NDArray[np.uint8]
    pages: NDArray[np.int32]
    spans: NDArray[np.int32]

    @property
    def inputs(self) -> dict[StepWord, Array]:
        return {StepWord.PAGES: self.pages, StepWord.SPANS: self.spans}

    def empty(self) -> NDArray[np.float32]:
        return np.full((len(self.q), self.shape.n_heads, self.shape.value_dim), 7.0, np.float32)

    def tokens(self, first: int, stop: int) -> Step:
        """The step of some of the tokens."""
        spans = np.ascontiguousarray(self.spans[first:stop])
        return replace(self, q=aligned(self.q[first:stop]), spans=spans)


def make_step(
    shape: AttentionShape,
    n_visible: Sequence[int],
    *,
    starts: Sequence[int] | None = None,
    pages: Sequence[int] | None = None,
    seed: int = 0,
) -> Step:
    rng = np.random.default_rng(seed)
    order = np.array(pages if pages is not None else rng.permutation(8), np.int32)
    n_cells = (int(order.max()) + 1) * 64

    def region(width: int, ggml_type: GGMLType) -> NDArray[np.uint8]:
        values = rng.standard_normal((n_cells, shape.n_kv_heads, width)).astype(np.float32)
        return aligned(quantise(ggml_type, values))

    spans = np.array(list(zip(starts or [0] * len(n_visible), n_visible, strict=True)), np.int32)
    q = aligned(rng.standard_normal((len(n_visible), shape.n_heads, shape.head_dim)).astype(np.float32))
    return Step(shape, q, region(shape.head_dim, shape.k_type), region(shape.value_dim, shape.v_type), order, spans)


@cache
def traced(trace: Callable[[AttentionShape], KernelIR], shape: AttentionShape) -> KernelIR:
    return trace(shape)


def running_on(target: str) -> Run:
    """How kernels run on an instruction set, or in the interpreter, which checks every access."""

    def run(
        kernel: KernelIR, arguments: Sequence[Array | int | None], chunks: Iterable[int], step: Step, scratch_bytes: int
    ) -> None:
        n_tokens = len(step.q)
        run_kernel(
            kernel,
            arguments,
            chunks,
            n_tokens=n_tokens,
            inputs=step.inputs,
            target=target,
            scratch_bytes=scratch_bytes,
        )

    return run


COMPILED = running_on(TARGETS[0])


def by_tiles(
    step: Step, run: Run = COMPILED, *, kernel: KernelIR | None = None, chunks: Iterable[int] | None = None
) -> NDArray[np.float32]:
    y, shape = step.empty(), step.shape
    every = range(-(-len(step.q) // TILE_TOKENS) * shape.n_kv_heads)
    run(
        kernel or traced(trace_attention_tiles, shape),
        [step.q, step.k, step.v, y, None],
        every if chunks is None else chunks,
        step,
        shape.tiles_scratch_bytes,
    )
    return y


def by_single_tokens(step: Step, run: Run = COMPILED) -> NDArray[np.float32]:
    y, shape = step.empty(), step.shape
    chunks = reversed(range(len(step.q) * shape.n_kv_heads))
    run(
        traced(trace_attention_tokens, shape),
        [step.q, step.k, step.v, y, None],
        chunks,
        step,
        shape.split_scratch_bytes,
    )
    return y


def by_splits(step: Step, run: Run = COMPILED) -> NDArray[np.float32]:
    """As many tokens at a time as there is room for in the buffer of partial results."""
    results = []
    for start in range(0, len(step.q), MAX_SPLIT_ROWS):
        part = step.tokens(start, start + MAX_SPLIT_ROWS)
        y, partials = part.empty(), no_partials(part)
        split_into(part, partials, run)
        combine_into(part, partials, y, run)
        results.append(y)
    return np.concatenate(results)


def no_partials(step: Step) -> NDArray[np.float32]:
    return np.full(step.shape.partials_bytes(len(step.pages)) // 4, np.nan, np.float32)


def split_into(
    step: Step, partials: NDArray[np.float32], run: Run = COMPILED, chunks: Iterable[int] | None = None
) -> None:
    n_chunks = len(step.q) * step.shape.n_kv_heads * attention.N_SPLITS
    chosen = reversed(range(n_chunks)) if chunks is None else chunks
    kernel = traced(trace_attention_split, step.shape)
    run(kernel, [step.q, step.k, step.v, None, partials, len(step.pages)], chosen, step, step.shape.split_scratch_bytes)


def combine_into(
    step: Step,
    partials: NDArray[np.float32],
    y: NDArray[np.float32],
    run: Run = COMPILED,
    chunks: Iterable[int] | None = None,
) -> None:
    chosen = range(len(step.q) * step.shape.n_kv_heads) if chunks is None else chunks
    kernel = traced(trace_attention_combine, step.shape)
    run(kernel, [None, None, None, y, partials, len(step.pages)], chosen, step, step.shape.split_scratch_bytes)


def seen_cells(step: Step, token: int) -> NDArray[np.int64]:
    start, n = step.spans[token].tolist()
    positions = np.arange(0 if step.shape.window is None else max(0, n - step.shape.window), n)
    cells: NDArray[np.int64] = step.pages[start + positions // 64].astype(np.int64) * 64 + positions % 64
    return cells


def check(step: Step, got: NDArray[np.float32]) -> None:
    """Against the reference, with u = 2**-24 for one rounding.

    Let S bound scale * sum |q[d] k[d]| over what a head sees. A score is off by (head_dim / 8 + 5) u S: the longest of
    8 sums, three additions of these, the scale and the product; a soft-cap adds at most 8 u S. That, the rounding of
    s - m (2 u S) and of the maxima's differences (2 u S: they telescope), and exp's 2 u are a relative error of each
    weight. Sums over a page add 64 u, and each fold 5 u at most. All this happens to the numerator and to the
    denominator, and the division adds u.
    Weights sum up to 1, so that the result is off by the sum of these times the largest |v|.
    """
    shape = step.shape
    k = dequantise(shape.k_type, step.k, shape.head_dim).astype(np.float64)
    v = dequantise(shape.v_type, step.v, shape.value_dim).astype(np.float64)
    want, bounds = np.empty(got.shape), np.empty((*got.shape[:2], 1))
    for token, q in enumerate(step.q.astype(np.float64)):
        cells = seen_cells(step, token)
        want[token] = attend(q, k[cells], v[cells], shape.scale, shape.softcap)
        grouped = np.abs(q).reshape(shape.n_kv_heads, shape.group, -1)
        largest = np.einsum("ghd,ngd->ghn", grouped, np.abs(k[cells])).max(axis=-1).reshape(-1)
        n_pages = len(cells) // 64 + 2
        of_scores = -(-shape.head_dim // 8) + 9 + (0 if shape.softcap is None else 8)
        relative = of_scores * abs(shape.scale) * largest + 2 + 64 + 5 * n_pages + 1
        bounds[token, :, 0] = 1.01 * 2 * UNIT * relative * np.abs(v[cells]).max()
    check_close(got, want, bounds)
