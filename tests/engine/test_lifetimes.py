"""Whatever holds memory or threads goes with its last reference, whether it was closed or not."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minfer
from batch_runner import request, submit
from minfer.engine.model_identity import ModelIdentity
from minfer.engine.plan import ExecutionPlan
from minfer.engine.runtime import Runtime
from minfer.gguf import GGUFFile
from tiny_load import tiny_path

Use = Callable[[minfer.Model], Any]


def half_a_stream(model: minfer.Model) -> object:
    stream = model.stream("hello", max_tokens=50, ignore_eos=True)
    next(stream)
    return stream


def half_of_some_samples(model: minfer.Model) -> object:
    stream = model.stream_samples("hello", 3, max_tokens=50, ignore_eos=True)
    next(stream)
    return stream


def half_a_turn(model: minfer.Model) -> object:
    chat = model.conversation("Be brief.", max_tokens=50, ignore_eos=True)
    stream = chat.ask("hello")
    next(stream)
    return chat, stream


def extended_session(model: minfer.Model) -> object:
    session = model.session()
    session.extend([1, 2, 3])
    return session, session.fork()


def answered_batch(model: minfer.Model) -> object:
    engine = model.batch_engine()
    return engine, submit(engine, request([1, 2, 3], max_tokens=4)).wait()


USES: dict[str, Use] = {
    "nothing": lambda model: None,
    "an answer": lambda model: model.generate("hello", max_tokens=3),
    "a long prompt": lambda model: model.generate([5] * 200, max_tokens=2),
    "half a stream": half_a_stream,
    "half of some samples": half_of_some_samples,
    "half a turn of a conversation": half_a_turn,
    "sessions": extended_session,
    "a batch engine": answered_batch,
}


@pytest.fixture(params=["cpu", "reference"])
def load(request: pytest.FixtureRequest, tiny_dir: Path) -> Callable[[], minfer.Model]:
    backend = request.param
    return lambda: minfer.load(tiny_path(tiny_dir), threads=2, backend=backend)


def parts(model: minfer.Model) -> dict[str, weakref.ref[Any]]:
    """What holds memory, by name."""
    runtime = model._runtime
    held = {
        "model": model,
        "runtime": runtime,
        "pages": runtime.pool,
        "prefix cache": runtime.prefix_cache,
        "page contents": runtime.store,
        "plan": runtime._plan,
        "program": next(iter(runtime._plan._programs.values())),
        "file": model._file,
    }
    return {name: weakref.ref(each) for name, each in held.items()}


def alive(references: dict[str, weakref.ref[Any]]) -> list[str]:
    gc.collect()
    return [name for name, reference in references.items() if reference() is not None]


def threads_of_minfer() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("minfer-")]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_model_that_is_dropped_is_freed_with_all_that_was_made_of_it(
    load: Callable[[], minfer.Model], use: Use
) -> None:
    before = set(threads_of_minfer())
    model = load()
    references = parts(model)
    made = use(model)
    new = set(threads_of_minfer()) - before
    del model, made
    assert alive(references) == []
    for thread in new:
        thread.join(timeout=20)
        assert not thread.is_alive()


_HOLDERS = (half_a_stream, half_of_some_samples, half_a_turn, extended_session, answered_batch)


@pytest.mark.parametrize("use", _HOLDERS)
def test_what_is_dropped_half_way_gives_its_pages_back(load: Callable[[], minfer.Model], use: Use) -> None:
    with load() as model:
        runtime = model._runtime
        made = use(model)
        del made
        gc.collect()
        runtime.prefix_cache.clear()
        assert runtime.pool.n_free == runtime.pool.n_pages


def test_what_is_made_of_a_model_keeps_it_usable(load: Callable[[], minfer.Model]) -> None:
    """A session, or a stream, whose model nobody else holds."""
    stream = load().stream("hello", max_tokens=5, ignore_eos=True)
    gc.collect()
    assert "".join(stream) == stream.result.text
    session = load().session()
    gc.collect()
    session.extend([1, 2, 3])


def test_a_dropped_engine_with_work_does_it_first(load: Callable[[], minfer.Model]) -> None:
    engine = load().batch_engine()
    thread, reference = engine._thread, weakref.ref(engine)
    collected = submit(engine, request([1, 2, 3], max_tokens=20))
    collected.handle = None
    del engine
    gc.collect()
    assert len(collected.wait().tokens()) == 20
    thread.join(timeout=20)
    assert not thread.is_alive()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("where", "name"),
    [(ExecutionPlan, "__init__"), (Runtime, "__init__"), (ModelIdentity, "__init__"), (minfer.Model, "__init__")],
    ids=["plan", "runtime", "identity", "model"],
)
def test_a_load_that_fails_in_the_middle_leaves_nothing(
    load: Callable[[], minfer.Model], monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    before, files = set(threads_of_minfer()), []
    real_open = GGUFFile.__init__

    def opened(self: GGUFFile, *arguments: object, **options: object) -> None:
        real_open(self, *arguments, **options)  # type: ignore[arg-type]
        files.append(weakref.ref(self))

    real = getattr(where, name)

    def failing(self: object, *arguments: object, **options: object) -> None:
        real(self, *arguments, **options)
        raise RuntimeError("in the middle")

    monkeypatch.setattr(GGUFFile, "__init__", opened)
    monkeypatch.setattr(where, name, failing)
    with pytest.raises(RuntimeError, match="in the middle"):
        load()
    gc.collect()
    assert [file() for file in files] == [None] * len(files)
    assert files
    for thread in set(threads_of_minfer()) - before:
        thread.join(timeout=20)
        assert not thread.is_alive()


GROWTH = """
import gc, os, sys
import minfer

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def load_and_drop():
    model = minfer.load(sys.argv[1], threads=2, n_ctx=2048)
    model.generate([5] * 1500, max_tokens=3)
    cache_bytes.append(model.kv_bytes_in_use)

cache_bytes = []
for _ in range(4):
    load_and_drop()
    gc.collect()
before = resident_bytes()
for _ in range(8):
    load_and_drop()
    gc.collect()
print(resident_bytes() - before, cache_bytes[-1])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_loading_again_and_again_takes_no_more_memory(tiny_dir: Path) -> None:
    """Eight loads with a prompt of 1,500 tokens each, dropped without being closed. Those that stayed would keep their
    caches, so that less than half of what eight hold is none."""
    command = [sys.executable, "-c", GROWTH, str(tiny_path(tiny_dir))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    growth, cache_bytes = map(int, done.stdout.split())
    assert growth < 8 * cache_bytes / 2
