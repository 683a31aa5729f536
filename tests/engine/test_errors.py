"""The exceptions get from one process to another with all that they hold."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import minfer
from minfer import errors
from minfer.cli.stdin import InputError
from minfer.cli.streams import OutputError
from minfer.errors import MinferError, ParameterError, UnsupportedError
from minfer.paths import user_path
from minfer.simd.errors import KernelError, Location
from tiny_load import tiny_path

SPECIAL: dict[type[MinferError], Callable[[type], MinferError]] = {
    errors.ModelNotFoundError: lambda kind: kind("name", ["here", "there"], "a hint"),
    errors.GGUFError: lambda kind: kind("it ends", field="magic", offset=4, path="x.gguf"),
    errors.UnsupportedError: lambda kind: kind("this", ["that"], "a hint"),
    errors.ContextError: lambda kind: kind("too many", n_positions=9, n_ctx=8),
    errors.ForeignFileError: lambda kind: kind("x.txt"),
    errors.SessionFileError: lambda kind: kind("x.session", "it is damaged"),
    errors.QueueFullError: lambda kind: kind(3, 1.5),
    OutputError: lambda kind: kind(OSError(28, "No space left on device")),
    InputError: lambda kind: kind(OSError(5, "Input/output error")),
    KernelError: lambda kind: kind("it is wrong", kernel="k", location=Location("f.py", 3)),
}
"""How to make those, and what is derived from them, that take more than a message."""


def all_kinds() -> list[type[MinferError]]:
    """Every exception of the package's tree."""
    for module in pkgutil.walk_packages(minfer.__path__, "minfer."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kinds, left = [], [MinferError]
    while left:
        kinds.append(kind := left.pop())
        left += kind.__subclasses__()
    return kinds


def made(kind: type[MinferError]) -> MinferError:
    make = next((SPECIAL[base] for base in kind.__mro__ if base in SPECIAL), lambda kind: kind("a message"))
    error = make(kind)
    error.add_note("a note")
    return error


@pytest.mark.parametrize("how", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_every_error_survives(how: Callable[[MinferError], MinferError]) -> None:
    kinds = all_kinds()
    assert len(kinds) >= 20
    for kind in kinds:
        error = made(kind)
        again = how(error)
        assert type(again) is kind
        assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)


def fail(path: str) -> None:
    minfer.load(path)


def test_an_error_comes_out_of_a_process_pool(tmp_path: Path) -> None:
    """Whose workers hang, or break, where an exception can't be unpickled."""
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(3))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(errors.GGUFError) as caught:
            pool.submit(fail, str(tmp_path / "broken.gguf")).result(timeout=120)
        assert caught.value.field
        with pytest.raises(errors.ModelNotFoundError, match="nowhere"):
            pool.submit(fail, "nowhere").result(timeout=120)


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_holds_memory_or_threads_says_what_to_do_instead(how: Callable[[object], object], tiny_dir: Path) -> None:
    with minfer.load(tiny_path(tiny_dir), backend="reference") as model, model.session() as session:
        chat, engine = model.conversation(), model.batch_engine()
        streams = (model.stream("hello"), model.stream_samples("hello", 2))
        for thing, instead in (
            (model, "minfer.load"),
            (engine, "minfer.load"),
            *((stream, "minfer.load") for stream in streams),
            (session, "Save it to a file"),
            (chat, "Save it to a file"),
        ):
            with pytest.raises(UnsupportedError, match=f"{type(thing).__name__}.*{instead}"):
                how(thing)
        engine.close()
        chat.close()


def test_a_tokenizer_can_be_pickled(tiny_dir: Path) -> None:
    tokenizer = minfer.load_tokenizer(tiny_path(tiny_dir))
    text = "hello <|im_end|> there"
    assert pickle.loads(pickle.dumps(tokenizer)).tokenize(text, special=True) == tokenizer.tokenize(text, special=True)


def test_a_path_is_text_or_a_path_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __fspath__(self) -> str:
            return "own"

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert user_path("a/b", "it") == user_path(Path("a/b"), "it") == Path("a/b")
    assert user_path(Own(), "it") == Path("own")
    assert user_path("~/x", "it") == user_path(Path("~/x"), "it") == tmp_path / "x"


@pytest.mark.parametrize("bad", [None, b"x", 3, "", "a\0b", ["x"], "~nobody-by-that-name/x"], ids=repr)
def test_anything_else_is_refused_in_words(bad: object, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="path of it"):
        user_path(bad, "it")


def test_every_call_that_takes_a_path_refuses_what_is_none(tiny_dir: Path) -> None:
    with minfer.load(tiny_path(tiny_dir), backend="reference") as model, model.session() as session:
        chat = model.conversation()
        for call in (
            minfer.load,
            minfer.load_tokenizer,
            session.save,
            chat.save,
            model.load_session,
            model.load_conversation,
        ):
            with pytest.raises(ParameterError, match="None"):
                call(None)  # type: ignore[arg-type]
        chat.close()
