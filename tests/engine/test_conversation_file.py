"""Conversations in files: they go on bit for bit, and a file that is not right is refused by name."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minfer
from minfer.engine.runtime import Runtime
from minfer.errors import ContextError, ParameterError, SessionFileError
from talk import say
from tiny_load import tiny_path
from tiny_models import MERGES, TINY_SPECS, write_tiny

SPECIAL = range(256 + len(MERGES), 300)
OPTIONS: dict[str, Any] = {
    "max_tokens": 5,
    "temperature": 1.2,
    "seed": 4,
    "logit_bias": dict.fromkeys(SPECIAL, float("-inf")),
    "samplers": ("logit_bias", "top_k", "temperature"),
    "top_p": 1.0,
    "min_p": 0.0,
}


@pytest.fixture(scope="module")
def small(tiny_dir: Path) -> Iterator[minfer.Model]:
    with minfer.load(tiny_path(tiny_dir), 120) as model:
        yield model


@pytest.mark.parametrize("with_cache", [True, False])
@pytest.mark.parametrize(("cache_type", "spec"), [("f32", "llama-gqa"), ("f16", "qwen2"), ("q8_0", "qwen3")])
def test_thirty_turns_with_a_save_in_the_middle_are_the_same(
    tiny_dir: Path, tmp_path: Path, cache_type: str, spec: str, with_cache: bool
) -> None:
    path = tiny_dir / f"{spec}-long.gguf"
    if not path.exists():
        write_tiny(path, replace(TINY_SPECS[spec], n_ctx=1024))
    with minfer.load(path, cache_type=cache_type) as model, model.conversation("be", **OPTIONS) as chat:
        for turn in range(14):
            say(chat, f"t{turn}")
        chat.save(tmp_path / "middle.chat", with_cache=with_cache)
        rest = [say(chat, f"t{turn}").tokens for turn in range(14, 30)]
        saved_tokens, saved_messages = chat.tokens, chat.messages
    # As on another day: nothing is left in memory.
    with (
        minfer.load(path, cache_type=cache_type) as model,
        model.load_conversation(tmp_path / "middle.chat") as chat,
    ):
        first = say(chat, "t14")
        assert (first.stats.n_cached_tokens > 200) == with_cache
        assert [first.tokens, *(say(chat, f"t{turn}").tokens for turn in range(15, 30))] == rest
        assert (chat.tokens, chat.messages) == (saved_tokens, saved_messages)


def test_a_shifted_conversation_goes_on_the_same_from_its_cache(small: minfer.Model, tmp_path: Path) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        for turn in range(9):
            say(chat, f"t{turn}")
        assert chat.n_forgotten > 0
        chat.save(tmp_path / "x.chat")
        with small.load_conversation(tmp_path / "x.chat") as loaded:
            assert loaded.n_forgotten == chat.n_forgotten
            assert loaded.messages == chat.messages
            for turn in range(9, 15):
                assert say(chat, f"t{turn}").tokens == say(loaded, f"t{turn}").tokens
            assert chat.tokens == loaded.tokens


def test_all_that_was_set_comes_back(small: minfer.Model, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **OPTIONS,
        "logit_bias": {3: -math.inf, 4: 0.5},
        "stop": ["x", "y"],
        "mirostat": 2,
        "samplers": ("logit_bias", "penalties", "temperature"),
        "template_variables": {"enable_thinking": False},
        "progress": lambda n, total: None,
    }
    options |= {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
    with small.conversation("be é 😀", **options) as chat:
        chat.context_shift = False
        say(chat, "you <|im_end|> say")
        chat.save(tmp_path / "x.chat")
        with small.load_conversation(tmp_path / "x.chat") as loaded:
            del options["progress"]
            assert loaded.options | {"samplers": tuple(loaded.options["samplers"])} == options
            assert loaded.context_shift is False
            assert (loaded.messages, loaded.tokens, loaded.system) == (chat.messages, chat.tokens, chat.system)
            # Mirostat's state and the random numbers go on.
            assert say(loaded, "more").tokens == say(chat, "more").tokens


def test_options_may_be_given_at_loading(small: minfer.Model, tmp_path: Path) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "a")
        chat.save(tmp_path / "x.chat")
        with small.load_conversation(tmp_path / "x.chat", max_tokens=3, seed=9) as loaded:
            assert loaded.options["temperature"] == 1.2
            chat.set_options(seed=9)
            assert say(loaded, "b").tokens == say(chat, "b", max_tokens=3).tokens
        with pytest.raises(ParameterError, match="temperature"):
            small.load_conversation(tmp_path / "x.chat", temperature=-1)


def test_loading_computes_nothing_and_the_next_turn_only_what_is_new(
    small: minfer.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "a")
        chat.save(tmp_path / "x.chat")
    small._runtime.prefix_cache.clear()
    sizes: list[int] = []
    step = Runtime.step
    monkeypatch.setattr(Runtime, "step", lambda self, parts: sizes.append(len(parts[0].tokens)) or step(self, parts))
    with small.load_conversation(tmp_path / "x.chat") as loaded:
        assert sizes == []
        n_before = loaded.n_tokens
        result = say(loaded, "b")
        assert sizes[0] == loaded.n_tokens - len(result.tokens) - (n_before - 1) < n_before


def test_an_empty_conversation(small: minfer.Model, tmp_path: Path) -> None:
    with small.conversation() as chat:
        chat.save(tmp_path / "x.chat")
    with small.load_conversation(tmp_path / "x.chat") as loaded:
        assert loaded.messages == ()
        say(loaded, "a", max_tokens=2)


def test_saving_ends_an_open_answer_and_keeps_it(small: minfer.Model, tmp_path: Path) -> None:
    with small.conversation(**OPTIONS) as chat:
        stream = chat.ask("a", max_tokens=50)
        shown = next(stream)
        chat.save(tmp_path / "x.chat")
        with small.load_conversation(tmp_path / "x.chat") as loaded:
            assert loaded.messages[-1] == {"role": "assistant", "content": shown}


def test_what_has_been_taken_back_is_not_in_the_file(small: minfer.Model, tmp_path: Path) -> None:
    secret = bytes.fromhex("".join(f"{token:02x}000000" for token in b"zzqz"))  # as the cache's tokens are written
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "a")
        say(chat, "zzqz")
        chat.save(tmp_path / "with.chat")
        chat.undo()
        chat.save(tmp_path / "without.chat")
        assert say(chat, "b").tokens
    assert b"zzqz" in (tmp_path / "with.chat").read_bytes()
    assert b"zzqz" not in (tmp_path / "without.chat").read_bytes()
    n_tokens = {len((tmp_path / name).read_bytes()) for name in ("with.chat", "without.chat")}
    assert max(n_tokens) - min(n_tokens) > 20 * small.kv_position_bytes
    assert secret not in (tmp_path / "without.chat").read_bytes()


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the header of a saved conversation, checksums and all, as somebody might who forges one."""
    data = path.read_bytes()
    magic, version, n_header, n_payload = struct.unpack("<8sIIQ", data[:24])
    header = json.loads(data[24 : 24 + n_header])
    change(header)
    encoded = json.dumps(header).encode()
    made = struct.pack("<8sIIQ", magic, version, len(encoded), n_payload) + encoded
    made += hashlib.blake2b(made, digest_size=32).digest()
    made += data[24 + n_header + 32 : -32]
    path.write_bytes(made + hashlib.blake2b(made, digest_size=32).digest())


@pytest.mark.parametrize(
    "change",
    [
        lambda extra: extra.pop("state"),
        lambda extra: extra["state"].pop("spans"),
        lambda extra: extra["state"].update(messages=[{"role": "user"}]),
        lambda extra: extra["state"].update(messages="x"),
        lambda extra: extra["state"].update(n_forgotten=99),
        lambda extra: extra["state"].update(sampler={"seed": 1}),
        lambda extra: extra["state"]["spans"].append([["x"], [300], False, False]),
        lambda extra: extra["state"]["spans"].append(["x"]),
        lambda extra: extra["options"].update(temperature=-1),
        lambda extra: extra["options"].update(what=1),
        lambda extra: extra.update(options=[1]),
    ],
)
def test_a_forged_conversation_is_refused_and_leaves_no_pages(
    small: minfer.Model, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = tmp_path / "x.chat"
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "a")
        chat.save(path)
    small.load_conversation(path).close()
    rewritten(path, lambda header: None)
    small.load_conversation(path).close()
    rewritten(path, lambda header: change(header["extra"]))
    small._runtime.prefix_cache.clear()
    n_free = small._runtime.pool.n_free
    with pytest.raises(SessionFileError, match="the conversation can't be understood"):
        small.load_conversation(path)
    small._runtime.prefix_cache.clear()
    assert small._runtime.pool.n_free == n_free


def test_files_that_are_no_conversation_of_this_model(small: minfer.Model, tiny_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.chat"
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "a")
        chat.save(path)
    whole = path.read_bytes()
    for spec, options, error, message in (
        ("qwen2", {}, SessionFileError, "it was saved with another model: Tiny llama"),
        ("llama-gqa", {"cache_type": "f32"}, SessionFileError, "its cache has keys in f16"),
        ("llama-gqa", {"n_ctx": 20}, ContextError, "the context has 20"),
    ):
        with minfer.load(tiny_path(tiny_dir, spec), **options) as other, pytest.raises(error, match=message):
            other.load_conversation(path)
    path.write_bytes(whole[:-5])
    with pytest.raises(SessionFileError, match="damaged"):
        small.load_conversation(path)
    path.write_text("hello")
    with pytest.raises(SessionFileError, match="no saved session"):
        small.load_conversation(path)
    with pytest.raises(SessionFileError, match="can't be read"):
        small.load_conversation(tmp_path / "nothing.chat")
    with small.session() as session:
        session.extend([1, 2])
        session.save(tmp_path / "session")
    with pytest.raises(SessionFileError, match="it is a saved session, and no conversation"):
        small.load_conversation(tmp_path / "session")
    with small.conversation() as chat, pytest.raises(SessionFileError, match="can't be written"):
        chat.save(tmp_path / "no" / "such" / "place")


def test_a_small_file_goes_on_with_another_type_of_cache(small: minfer.Model, tiny_dir: Path, tmp_path: Path) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "a")
        chat.save(tmp_path / "x.chat", with_cache=False)
        assert (tmp_path / "x.chat").stat().st_size < 20_000
    with (
        minfer.load(tiny_path(tiny_dir), 120, cache_type="f16") as other,
        other.load_conversation(tmp_path / "x.chat") as loaded,
    ):
        assert loaded.messages == chat.messages
        say(loaded, "b")
