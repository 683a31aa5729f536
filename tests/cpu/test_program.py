"""Whole models on the CPU backend: right, and the same bits for any threads, chunks, batch, instruction set and
repetition."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cpu_runner import TARGETS, check_close, shared_kernels
from minfer.backends.cpu import CpuBackend
from minfer.engine.runtime import StepPart
from minfer.errors import UnsupportedError
from minfer.models import KVTypes
from minfer.quants import GGMLType
from minfer.simd import host_target, host_target_names
from minfer.trace import NodeEvent
from plain_forward import plain_forward, plain_hidden_states
from tiny_load import tiny_path
from tiny_models import TINY_SPECS, load_weights
from tiny_runtime import chunked_logits, same_bits, tiny_runtime, whole_logits

TOKENS = np.random.default_rng(5).integers(0, 300, 90).tolist()
FLOAT_SPECS = [name for name, spec in TINY_SPECS.items() if "quants" not in name and "q8_0" not in name]
QUANTISED_SPECS = [name for name in TINY_SPECS if name not in FLOAT_SPECS]
UNIT = 2.0**-24


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_kernels(tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture
def runtime(cache: Path, tiny_dir: Path):
    def make(name: str = "llama-k-quants", *, isa: str | None = None, **options: object):
        return tiny_runtime(tiny_path(tiny_dir, name), backends=[CpuBackend(isa, cache)], **options)

    return make


@pytest.mark.parametrize("name", FLOAT_SPECS)
def test_float_models_are_right(runtime, tiny_dir: Path, name: str) -> None:
    want = plain_forward(TINY_SPECS[name], load_weights(tiny_path(tiny_dir, name)), TOKENS)
    with runtime(name) as run:
        got = whole_logits(run, TOKENS)
    # Roundings of two or three layers, each some hundred units of a hidden state that is normalised again and again.
    check_close(got, want, 1000 * UNIT * np.abs(want).max())


@pytest.mark.parametrize("name", QUANTISED_SPECS)
def test_quantised_models_are_right_but_for_the_8_bits_of_activations(runtime, tiny_dir: Path, name: str) -> None:
    want = plain_forward(TINY_SPECS[name], load_weights(tiny_path(tiny_dir, name)), TOKENS)
    with runtime(name) as run:
        got = whole_logits(run, TOKENS)
    # A value of a block of normal numbers is off by at most max / 254, some 1 %; seven products deep in each layer, the
    # error's share in the variance of the logits stays below 1 %.
    error = got - want
    assert (error**2).mean() < 0.01 * want.var()
    assert (got.argmax(axis=1) == want.argmax(axis=1)).mean() > 0.8


@pytest.mark.parametrize("n_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["llama-k-quants", "llama-gqa"])
def test_the_number_of_threads_does_not_matter(runtime, name: str, n_threads: int) -> None:
    with runtime(name) as run:
        want = whole_logits(run, TOKENS)
    with runtime(name, n_threads=n_threads, poison=False) as run:
        assert same_bits(want, whole_logits(run, TOKENS))
        assert same_bits(want[-1], chunked_logits(run, TOKENS, 64)[-1])


@pytest.mark.parametrize("name", ["llama-k-quants", "llama-legacy-quants", "llama-q8_0", "qwen3", "llama-f16"])
@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_chunks_and_decoding_do_not_matter(runtime, name: str, chunk: int) -> None:
    with runtime(name) as run:
        assert same_bits(whole_logits(run, TOKENS), chunked_logits(run, TOKENS, chunk))


def test_mixed_prefill_and_decode_in_one_step(runtime) -> None:
    with runtime() as run:
        first, second = run.sequence(), run.sequence()
        first.reserve(41)
        second.reserve(30)
        run.step([StepPart(TOKENS[:40], 0, first.pages, [])])
        mixed = run.step([StepPart(TOKENS[40:41], 40, first.pages, [0]), StepPart(TOKENS[:30], 0, second.pages, [29])])
        assert same_bits(mixed[0], whole_logits(run, TOKENS[:41])[-1])
        assert same_bits(mixed[1], whole_logits(run, TOKENS[:30])[-1])


@pytest.mark.parametrize("isa", [name for name in TARGETS if name != "portable"])
def test_every_instruction_set_gives_the_same_bits(runtime, isa: str) -> None:
    """The portable one takes long to compile for quantised weights: see `engine/test_identity.py`."""
    with runtime() as run:
        want = whole_logits(run, TOKENS[:40])
    with runtime(isa=isa) as run:
        assert same_bits(want, whole_logits(run, TOKENS[:40]))


@pytest.mark.parametrize("ggml_type", [GGMLType.F16, GGMLType.Q8_0], ids=lambda t: t.name)
def test_smaller_caches_stay_near_and_keep_their_bits(runtime, ggml_type: GGMLType) -> None:
    with runtime() as run:
        exact = whole_logits(run, TOKENS)
    with runtime(kv_types=KVTypes(ggml_type, ggml_type)) as run:
        rounded = whole_logits(run, TOKENS)
        assert same_bits(rounded, chunked_logits(run, TOKENS, 1))
    assert not same_bits(exact, rounded)
    assert ((exact - rounded) ** 2).mean() < 0.01 * exact.var()


def test_repetition_gives_the_same_bits(runtime) -> None:
    with runtime(n_threads=2, poison=False) as run:
        results = [whole_logits(run, TOKENS) for _ in range(5)]
    assert all(same_bits(results[0], other) for other in results[1:])


class Collector:
    """An observer that keeps the hidden states."""

    def __init__(self) -> None:
        self.hidden: list[NDArray[np.float32]] = []
        self.nodes: list[str] = []

    def begin_step(self, n_tokens: int, first_position: int) -> None:
        self.hidden, self.nodes = [], []

    def node_ran(self, event: NodeEvent) -> None:
        self.nodes.append(event.node)
        self.hidden += [array.copy() for name, array in event.outputs if name.endswith(".hidden")]

    def close(self) -> None:
        """Nothing is held."""


def test_watching_changes_nothing_and_shows_what_is_there(runtime, tiny_dir: Path) -> None:
    collector = Collector()
    with runtime("llama-gqa", poison=False) as run:
        want = whole_logits(run, TOKENS)
    with runtime("llama-gqa", poison=False, observers=[collector]) as run:
        assert same_bits(want, whole_logits(run, TOKENS))
    states = plain_hidden_states(TINY_SPECS["llama-gqa"], load_weights(tiny_path(tiny_dir, "llama-gqa")), TOKENS)
    assert len(collector.hidden) == 3
    for got, exact in zip(collector.hidden, states[1:], strict=True):
        check_close(got, exact, 1000 * UNIT * np.abs(exact).max())
    assert len(set(collector.nodes)) == len(collector.nodes) > 30


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="portable"):
        CpuBackend("neon" if "neon" not in host_target_names() else "avx512")


def test_no_target_enables_what_the_host_lacks() -> None:
    from llvmlite import binding

    host = {name for name, there in binding.get_host_cpu_features().items() if there}
    enabled = {f.removeprefix("+") for f in host_target().features.split(",") if f.startswith("+")}
    tuning = {"prefer-256-bit"}
    assert enabled - tuning <= host


def test_a_second_program_compiles_nothing(tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(tiny_runtime, tiny_path(tiny_dir, "llama-gqa"), backends=[CpuBackend(None, tmp_path / "kernels")])
    with make() as run:
        want = whole_logits(run, TOKENS)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr("minfer.backends.cpu.compile.trace_work", refuse)
    monkeypatch.setattr("minfer.simd.cache.compile_to_object", refuse)
    with make() as run:
        assert same_bits(want, whole_logits(run, TOKENS))
