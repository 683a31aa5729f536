"""The logits of a token are the same bits whatever the threads, the chunks, the batch, the instruction set, and what
lies in memory that holds nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QType
from numpy.typing import NDArray

import minfer
from cpu_runner import shared_kernels
from minfer.backends.cpu import CpuBackend
from minfer.engine.runtime import Runtime, StepPart
from minfer.models import KVTypes
from minfer.quants import GGMLType
from minfer.simd import host_target_names
from real_models import default_model
from tiny_load import tiny_path
from tiny_models import TinySpec, write_tiny
from tiny_runtime import chunked_logits, same_bits, tiny_runtime

N_CTX, MAX_TOKENS = 640, 512
TOKENS = np.random.default_rng(11).integers(0, 300, 600).tolist()
ISAS = host_target_names()
KVS = {"f32": None, "q8_0": KVTypes(GGMLType.Q8_0, GGMLType.Q8_0)}

MakeRuntime = Callable[..., AbstractContextManager[Runtime]]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_kernels(tmp_path_factory)


@pytest.fixture
def runtime(kernels: Path, tiny_dir: Path) -> MakeRuntime:
    """A tiny model on the CPU backend: mixed K quants, grouped queries; or the model at `path`."""

    def make(*, path: Path | None = None, isa: str | None = None, poison: bool = False, **options: object):
        source = path or tiny_path(tiny_dir, "llama-k-quants")
        options = {"n_ctx": N_CTX, "max_tokens": MAX_TOKENS, "poison": poison, **options}
        return tiny_runtime(source, backends=[CpuBackend(isa, kernels)], **options)

    return make


@pytest.fixture(scope="module")
def expected(kernels: Path, tiny_dir: Path) -> dict[str, NDArray[np.float32]]:
    """The logits after every token, by type of cache: one thread, steps as long as there are."""
    found = {}
    for name, kv_types in KVS.items():
        backend, path = CpuBackend(None, kernels), tiny_path(tiny_dir, "llama-k-quants")
        with tiny_runtime(
            path, backends=[backend], n_ctx=N_CTX, max_tokens=MAX_TOKENS, kv_types=kv_types, poison=False
        ) as run:
            found[name] = chunked_logits(run, TOKENS, MAX_TOKENS)
    assert np.isfinite(found["f32"]).all()
    assert not same_bits(found["f32"], found["q8_0"])
    return found


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("kv", KVS)
def test_threads(runtime: MakeRuntime, expected: dict[str, NDArray[np.float32]], kv: str, n_threads: int) -> None:
    with runtime(n_threads=n_threads, kv_types=KVS[kv]) as run:
        assert same_bits(expected[kv], chunked_logits(run, TOKENS, MAX_TOKENS))
        # Few tokens take other paths through the kernels.
        assert same_bits(expected[kv][:20], chunked_logits(run, TOKENS[:20], 1))
        assert same_bits(expected[kv][:30], chunked_logits(run, TOKENS[:30], 3))


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
@pytest.mark.parametrize("kv", KVS)
def test_chunks_down_to_single_tokens(
    runtime: MakeRuntime, expected: dict[str, NDArray[np.float32]], kv: str, chunk: int
) -> None:
    with runtime(n_threads=2, kv_types=KVS[kv]) as run:
        assert same_bits(expected[kv], chunked_logits(run, TOKENS, chunk))


def test_steps_of_every_length(runtime: MakeRuntime, expected: dict[str, NDArray[np.float32]]) -> None:
    """Over every border between the paths that kernels have for few tokens and for many."""
    with runtime(n_threads=2) as run:
        for n in range(1, 131):
            assert same_bits(expected["f32"][:n], chunked_logits(run, TOKENS[:n], n)), n


def test_steps_of_every_length_with_float_weights(runtime: MakeRuntime, tiny_dir: Path) -> None:
    with runtime(path=tiny_path(tiny_dir, "llama-f16"), n_threads=2) as run:
        want = chunked_logits(run, TOKENS[:40], 40)
        for n in range(1, 40):
            assert same_bits(want[:n], chunked_logits(run, TOKENS[:n], n)), n


def test_running_again(runtime: MakeRuntime, expected: dict[str, NDArray[np.float32]]) -> None:
    with runtime(n_threads=2) as run:
        for _ in range(3):
            assert same_bits(expected["f32"], chunked_logits(run, TOKENS, 100))


@pytest.mark.parametrize("kv", KVS)
def test_memory_that_holds_nan(runtime: MakeRuntime, expected: dict[str, NDArray[np.float32]], kv: str) -> None:
    with runtime(poison=True, kv_types=KVS[kv]) as run:
        assert same_bits(expected[kv], chunked_logits(run, TOKENS, 301))
        assert same_bits(expected[kv][:10], chunked_logits(run, TOKENS[:10], 1))


BATCH = [
    (0, 1),
    (0, 2),
    (150, 1),
    (63, 1),
    (64, 1),
    (0, 90),
    (20, 40),
    (70, 1),
    (0, 64),
    (3, 1),
    (200, 16),
    (0, 1),
    (128, 5),
]
"""For each of 13 sequences: tokens that came before, and tokens of the step that they share."""


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_batch_of_13_sequences(runtime: MakeRuntime, n_threads: int) -> None:
    """New prompts, prompts that go on, and single tokens, in one step, in any order."""
    texts = [TOKENS[10 * i : 10 * i + before + new] for i, (before, new) in enumerate(BATCH)]
    with runtime(n_threads=n_threads) as run:
        alone = [chunked_logits(run, text, MAX_TOKENS)[before:] for text, (before, _) in zip(texts, BATCH, strict=True)]
        for order in (range(13), np.random.default_rng(2).permutation(13).tolist()):
            sequences = [run.sequence() for _ in texts]
            parts = []
            for sequence, text, (before, new) in zip(sequences, texts, BATCH, strict=True):
                sequence.reserve(before + new)
                if before:
                    run.step([StepPart(text[:before], 0, sequence.pages, [])])
                parts.append(StepPart(text[before:], before, sequence.pages, range(new)))
            together = run.step([parts[i] for i in order])
            assert same_bits(together, np.concatenate([alone[i] for i in order]))
            for sequence in sequences:
                sequence.free()


@pytest.fixture(scope="module")
def small_quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, with one shape of quantised products: portable code for them takes long to compile."""
    types = tuple((name, QType.Q5_1) for name in ("attn_q", "attn_k", "attn_v"))
    spec = TinySpec(n_kv_heads=2, n_layers=1, n_ff=64, weight_types=types, seed=71)
    return write_tiny(tmp_path_factory.mktemp("quantised") / "model.gguf", spec)


@pytest.fixture(scope="module")
def small_expected(kernels: Path, small_quantised: Path) -> Iterator[NDArray[np.float32]]:
    with tiny_runtime(small_quantised, backends=[CpuBackend(ISAS[0], kernels)]) as run:
        yield chunked_logits(run, TOKENS[:100], 100)


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets(
    runtime: MakeRuntime, small_quantised: Path, small_expected: NDArray[np.float32], isa: str
) -> None:
    """Also what is plain code for any x86-64 or Arm CPU."""
    with runtime(path=small_quantised, isa=isa, n_threads=2) as run:
        for chunk in (100, 4, 1):  # each takes another path through the products
            assert same_bits(small_expected, chunked_logits(run, TOKENS[:100], chunk))


@pytest.mark.default_model
@pytest.mark.xdist_group("default_model")
@pytest.mark.parametrize("cache_type", ["f32", "q8_0"])
def test_a_real_model(cache_type: str) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 12
    results = []
    for threads, chunk in ((1, None), (2, 7), (3, 64)):
        with minfer.load(default_model(), n_ctx=256, threads=threads, backend="cpu", cache_type=cache_type) as model:
            tokens = model.tokenize(text)[:110]
            with model.session() as session:
                read = session.extend_all(tokens[:100], chunk=chunk)
                decoded = [session.extend([token]) for token in tokens[100:]]
            results.append(np.concatenate([read, decoded]))
            assert same_bits(np.array(decoded), model.logits(tokens, all=True)[100:])
    assert all(same_bits(results[0], other) for other in results[1:])
