"""The tape of a whole model, walked by hand: in any order that barriers allow, and with every access checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QType

from cpu_runner import shared_kernels
from minfer.backends import CompileRequest
from minfer.backends.arena import aligned_zeros
from minfer.backends.cpu import CpuBackend
from minfer.backends.cpu.convention import Entry
from minfer.backends.cpu.program import CpuProgram
from minfer.engine.runtime import Runtime
from minfer.graph import StepInputs
from minfer.models import KVTypes
from minfer.quants import GGMLType
from minfer.simd import interpret
from tiny_load import tiny_path
from tiny_models import TinySpec, write_tiny
from tiny_runtime import chunked_logits, same_bits, tiny_runtime

TOKENS = np.random.default_rng(9).integers(0, 300, 110).tolist()

Walk = Callable[[CpuProgram, StepInputs, int, int], None]


class ByHand(CpuBackend):
    """The backend, with another walker in the place of its threads."""

    def __init__(self, walk: Walk, kernel_cache: Path | None) -> None:
        super().__init__(None, kernel_cache)
        self._walk = walk

    def compile(self, request: CompileRequest) -> CpuProgram:
        program = super().compile(request)
        run, walk = program.run, self._walk

        def run_by_hand(segment: int, inputs: StepInputs, observers: object) -> None:
            program._pool.run = lambda first, stop: walk(program, inputs, first, stop)  # type: ignore[method-assign]
            run(segment, inputs, observers)  # type: ignore[arg-type]

        program.run = run_by_hand  # type: ignore[method-assign,assignment]
        return program


def chunks_by_barrier(program: CpuProgram, first: int, stop: int) -> Iterator[list[tuple[int, Entry, int]]]:
    """The chunks that run between two barriers: number of the entry, the entry, number of the chunk."""
    together: list[tuple[int, Entry, int]] = []
    for index in range(first, stop):
        entry = program._tape.entries[index]
        n_rows = int(program._pool.step_block[entry.rows])
        if entry.min_rows <= n_rows <= entry.max_rows:
            n_tiles = -(-n_rows // entry.rows_per_chunk) if entry.rows_per_chunk else 1
            together += [(index, entry, chunk) for chunk in range(n_tiles * entry.n_parts)]
            if entry.barrier:
                yield together
                together = []
    yield together


def in_order_of(seed: int) -> Walk:
    """Compiled kernels; the chunks between two barriers, of all their entries, in random order."""
    rng = np.random.default_rng(seed)

    def walk(program: CpuProgram, inputs: StepInputs, first: int, stop: int) -> None:
        pool = program._pool
        (scratch, *_) = pool._scratch
        for together in chunks_by_barrier(program, first, stop):
            for which in rng.permutation(len(together)):
                index, entry, chunk = together[which]
                scratch[:] = 0xFF
                kernel = pool._module[entry.kernel].raw
                kernel(pool._arguments[index].ctypes.data, pool.step_block.ctypes.data, chunk, scratch.ctypes.data)

    return walk


def interpreted(program: CpuProgram, inputs: StepInputs, first: int, stop: int) -> None:
    """Each entry has just as much scratch memory as it asks for."""
    buffers = [
        program._arena._memory,
        *program._tape.buffers,
        *program._weights.values(),
        *program._regions.values(),
        *inputs.arrays().values(),
        *(each for each in program._pool._arguments),
    ]
    for together in chunks_by_barrier(program, first, stop):
        for index, entry, chunk in together:
            kernel = program._tape.kernels[entry.kernel]()
            scratch = aligned_zeros(entry.scratch_bytes)
            scratch[:] = 0xFF
            arguments, step = program._pool._arguments[index], program._pool.step_block
            interpret(kernel, arguments, step, chunk, scratch, buffers=buffers)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schedules")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_kernels(tmp_path_factory)


@contextmanager
def loaded(kernels: Path, path: Path, walk: Walk | None, **options: object) -> Iterator[Runtime]:
    backend = CpuBackend(None, kernels) if walk is None else ByHand(walk, kernels)
    # Chunks are cut for the number of threads.
    with tiny_runtime(path, backends=[backend], poison=False, n_threads=3, max_tokens=128, **options) as run:
        yield run


def test_a_step_is_one_walk_over_the_whole_tape(directory: Path, kernels: Path) -> None:
    """Python comes in between once a step, whatever its length."""
    walks: list[tuple[int, int]] = []
    real = in_order_of(0)

    def walk(program: CpuProgram, inputs: StepInputs, first: int, stop: int) -> None:
        walks.append((first, stop))
        assert (first, stop) == (0, len(program._tape.entries))
        real(program, inputs, first, stop)

    with loaded(kernels, tiny_path(directory, "llama-gqa"), walk) as run:
        for n_steps, (n_tokens, chunk) in ((1, (110, 110)), (3, (15, 5)), (4, (4, 1))):
            walks.clear()
            chunked_logits(run, TOKENS[:n_tokens], chunk)
            assert len(walks) == n_steps


@pytest.mark.parametrize("chunk", [1, 3, 110])
@pytest.mark.parametrize("name", ["llama-k-quants", "llama-biases", "qwen3"])
def test_any_order_between_barriers_gives_the_same_bits(directory: Path, kernels: Path, name: str, chunk: int) -> None:
    path, tokens = tiny_path(directory, name), TOKENS[: 40 * chunk]
    with loaded(kernels, path, None) as run:
        want = chunked_logits(run, tokens, chunk)
    for seed in range(2):
        with loaded(kernels, path, in_order_of(seed)) as run:
            assert same_bits(want, chunked_logits(run, tokens, chunk))


@pytest.mark.parametrize(
    ("kv_type", "chunk", "n_tokens"),
    [(GGMLType.F32, 1, 3), (GGMLType.Q8_0, 1, 2), (GGMLType.Q8_0, 5, 10), (GGMLType.F32, 101, 101)],
    ids=str,
)
def test_no_entry_reads_or_writes_what_is_not_its_own(
    directory: Path, kernels: Path, kv_type: GGMLType, chunk: int, n_tokens: int
) -> None:
    """Steps are as long as they may be, so that whatever lies behind a buffer would be touched."""
    spec = TinySpec(
        n_layers=1, n_embd=32, n_heads=2, n_kv_heads=1, head_dim=32, value_dim=32, n_rot=32, n_ff=32, n_vocab=270,
        weight_type=QType.Q4_1, weight_types=(("output", QType.F16),), seed=4,
    )  # fmt: skip
    path = directory / "smallest.gguf"
    if not path.exists():
        write_tiny(path, spec)
    tokens = [token % spec.n_vocab for token in TOKENS[:n_tokens]]
    options = {"kv_types": KVTypes(kv_type, kv_type), "max_tokens": chunk, "n_ctx": 128}
    results = []
    for backend in (CpuBackend(None, kernels), ByHand(interpreted, kernels)):
        with tiny_runtime(path, backends=[backend], poison=False, n_threads=1, **options) as run:
            results.append(chunked_logits(run, tokens, chunk))
    assert same_bits(*results)
