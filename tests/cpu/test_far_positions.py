"""A whole model at position 30,000: rotations, the store and attention against the reference on the same cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import check_close, same_bits, shared_kernels
from minfer.backends import Backend
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.engine.runtime import StepPart
from minfer.graph import PAGE_SIZE
from tiny_load import tiny_path
from tiny_runtime import tiny_runtime

POSITION, N_NEW, N_REPEATED = 30_000, 9, 3
TOKENS = np.random.default_rng(8).integers(0, 300, N_REPEATED * PAGE_SIZE + N_NEW).tolist()
UNIT = 2.0**-24


def logits_there(path: Path, backend: Backend, chunk: int, first_position: int = POSITION) -> NDArray[np.float32]:
    """The logits of tokens from `first_position` on, after a past that repeats a few pages again and again."""
    before = N_REPEATED * PAGE_SIZE
    n_pages = -(-(first_position + N_NEW) // PAGE_SIZE)
    # The pages that are written to come last.
    pages = tuple(i % N_REPEATED if i < first_position // PAGE_SIZE else i for i in range(n_pages))
    with tiny_runtime(path, backends=[backend], n_ctx=32_768, n_threads=2, poison=False) as run:
        for start in range(0, before, PAGE_SIZE):
            part = StepPart(TOKENS[start : start + PAGE_SIZE], start, tuple(range(N_REPEATED)), [])
            run.step([part])
        results = []
        for start in range(0, N_NEW, chunk):
            tokens = TOKENS[before + start : before + min(start + chunk, N_NEW)]
            results.append(run.step([StepPart(tokens, first_position + start, pages, range(len(tokens)))]))
    return np.concatenate(results)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("far")


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "llama-yarn"])
def test_a_model_at_a_far_position(directory: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    path, cpu = tiny_path(directory, name), CpuBackend(None, shared_kernels(tmp_path_factory))
    want = logits_there(path, ReferenceBackend(), N_NEW)
    # Roundings of two or three layers, each some hundred units, as at near positions. Angles in float32 are off by
    # up to 0.002 here, and exceed it several times over.
    bound = 1000 * UNIT * np.abs(want).max()
    got = logits_there(path, cpu, N_NEW)
    check_close(got, want, bound)
    assert same_bits(got, logits_there(path, cpu, 1))
    with pytest.raises(AssertionError, match="allowed difference"):
        check_close(logits_there(path, cpu, N_NEW, POSITION + PAGE_SIZE), want, bound)
