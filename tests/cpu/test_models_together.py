"""Models that share a process: with each other, with several Python threads, and with whoever wants the cores when they
have nothing to do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import minfer
from cpu_runner import shared_kernels
from minfer.backends.cpu import backend as backend_module
from tiny_load import tiny_path

TEXTS = [np.random.default_rng(i).integers(0, 300, n).tolist() for i, n in enumerate((90, 3, 40, 1))]
NAMES = ("llama-gqa", "qwen3")


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_CACHE_DIR", str(shared_kernels(tmp_path_factory).parent))


@pytest.fixture
def models(cache_dir: None, tiny_dir: Path) -> Iterator[list[minfer.Model]]:
    loaded = [minfer.load(tiny_path(tiny_dir, name), backend="cpu", threads=2) for name in NAMES]
    yield loaded
    for model in loaded:
        model.close()


def answers(model: minfer.Model) -> list[bytes]:
    """The bits of what a model says to each text: the logits of all its tokens, and of two that follow."""
    found = []
    for text in TEXTS:
        with model.session() as session:
            found.append(
                session.extend_all(text).tobytes() + session.extend([5]).tobytes() + session.extend([6]).tobytes()
            )
    return found


def worker_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("minfer-")]


def test_two_models_and_two_threads_for_each(models: list[minfer.Model]) -> None:
    expected = [answers(model) for model in models]
    assert expected[0] != expected[1]

    def gives_the_same(index: int) -> bool:
        return all(answers(models[index]) == expected[index] for _ in range(5))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(gives_the_same, (0, 1, 0, 1))) == [True] * 4


def test_closing_one_model_leaves_the_other_at_work(models: list[minfer.Model]) -> None:
    expected = answers(models[1])
    before = len(worker_threads())
    models[0].close()
    assert len(worker_threads()) == before - 1
    assert answers(models[1]) == expected


def test_no_time_is_used_on_a_cpu_after_the_last_token(models: list[minfer.Model]) -> None:
    """Of all threads of this process together. A worker that went on spinning would use all of the pause."""
    pause_s = 0.3
    for model in models:
        list(model.stream(TEXTS[2], max_tokens=5, temperature=0, ignore_eos=True))
    assert len(worker_threads()) == len(models)
    shares = []
    for _ in range(10):  # on a busy machine a worker may wait long for its turn to stop
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(pause_s)
        shares.append((time.process_time() - before) / pause_s)
        if shares[-1] < 0.02:
            return
    raise AssertionError(f"CPU time used while there was nothing to do, as shares of the time: {shares}")


def test_as_many_threads_as_cores_that_may_be_used(
    cache_dir: None, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(worker_threads())
    for n_cores, threads, n_workers in ((1, None, 0), (3, None, 2), (3, 2, 1)):
        monkeypatch.setattr(backend_module, "n_usable_cores", lambda n=n_cores: n)
        with minfer.load(tiny_path(tiny_dir), backend="cpu", threads=threads):
            assert len(worker_threads()) == before + n_workers


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system sets no affinity")
def test_the_cores_are_those_of_the_affinity() -> None:
    script = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\n"
    script += "from minfer.backends.cpu.os_threads import n_usable_cores\nprint(n_usable_cores())"
    core = min(os.sched_getaffinity(0))
    done = subprocess.run([sys.executable, "-c", script, str(core)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
