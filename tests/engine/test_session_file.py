"""Saved sessions: they go on bit for bit, and what is damaged or of something else is refused before it is used."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import minfer
from minfer.backends import Backend
from minfer.backends.cpu import CpuBackend
from minfer.backends.reference import ReferenceBackend
from minfer.engine import hashed_file
from minfer.engine.hashed_file import HashedWriter
from minfer.engine.model_identity import ModelIdentity
from minfer.engine.runtime import Runtime
from minfer.engine.session import Session
from minfer.engine.session_file import load_sequence, save_sequence
from minfer.errors import ContextError, ParameterError, SessionFileError
from minfer.gguf import open_gguf
from minfer.models import KVTypes
from tiny_cache_types import KV_TYPES
from tiny_load import tiny_path
from tiny_models import TINY_SPECS, write_tiny
from tiny_runtime import same_bits, tiny_runtime

TOKENS = np.random.default_rng(9).integers(0, 300, 200).tolist()
HEAD_BYTES, DIGEST_BYTES = 24, 32


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest, tiny_dir: Path) -> Backend:
    return ReferenceBackend() if request.param == "reference" else CpuBackend(kernel_cache=tiny_dir / "kernels")


@pytest.fixture(scope="module")
def saved(tiny_dir: Path) -> Path:
    """A session of 70 tokens."""
    path = tiny_dir / "saved.session"
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run, Session(run) as session:
        session.extend(TOKENS[:70])
        session.save(path)
    return path


def refused(run: Runtime, path: Path, reason: str) -> None:
    """The file is refused for the reason, and no page is gone."""
    n_free = run.pool.n_free
    with pytest.raises(SessionFileError, match=reason) as caught:
        Session.load(run, path)
    assert caught.value.path == str(path)
    assert run.pool.n_free == n_free


@pytest.mark.parametrize("n_tokens", [0, 1, 64, 150])
@pytest.mark.parametrize("kv_types", KV_TYPES.values(), ids=KV_TYPES)
def test_it_goes_on_bit_for_bit_in_another_runtime(
    backend: Backend, kv_types: KVTypes, n_tokens: int, tiny_dir: Path, tmp_path: Path
) -> None:
    model, path = tiny_path(tiny_dir, "qwen3"), tmp_path / "a.session"
    with tiny_runtime(model, backends=(backend,), kv_types=kv_types, max_tokens=250) as run:
        with Session(run) as session:
            if n_tokens:
                session.extend(TOKENS[:n_tokens])
            session.save(path)
            want = session.extend_all(TOKENS[150:200])
            assert session.n_tokens == n_tokens + 50  # saving has not changed it
        assert run.pool.n_free == run.pool.n_pages
    # Another runtime, in which the sequence stands in other pages.
    with tiny_runtime(model, backends=(backend,), kv_types=kv_types, max_tokens=250) as run:
        run.pool.take(3)
        with Session.load(run, path) as session:
            assert session.tokens == tuple(TOKENS[:n_tokens])
            assert same_bits(session.extend_all(TOKENS[150:200]), want)


def test_one_that_was_shifted_goes_on_and_gives_no_prefix_beyond_the_shift(tiny_dir: Path, tmp_path: Path) -> None:
    model, path = tiny_path(tiny_dir, "qwen3"), tmp_path / "a.session"
    with tiny_runtime(model, prefix_cache_bytes=2**30) as run, Session(run) as session:
        session.extend(TOKENS[:150])
        session.drop(10, 60)
        session.save(path)
        want = session.extend(TOKENS[:5])
    with tiny_runtime(model, prefix_cache_bytes=2**30) as run:
        with Session.load(run, path) as session:
            with Session(run, reuse=session.tokens) as other:
                assert other.n_tokens == 10
            assert same_bits(session.extend(TOKENS[:5]), want)
        run.prefix_cache.clear()
        with Session.load(run, _as_of_another_engine(path)) as session:
            assert Session(run, reuse=session.tokens).n_tokens == 0
            assert same_bits(session.extend(TOKENS[:5]), want)


def _as_of_another_engine(path: Path) -> Path:
    other = path.with_suffix(".other")
    with_header(path, other, lambda header: header | {"numerics": "minfer 0.0.0, abacus"})
    return other


def with_header(path: Path, target: Path, change) -> None:
    """A copy with another header, and digests that fit it."""
    data = path.read_bytes()
    magic, version, n_header, n_payload = struct.unpack_from("<8sIIQ", data)
    encoded = json.dumps(change(json.loads(data[HEAD_BYTES : HEAD_BYTES + n_header]))).encode()
    with target.open("wb") as file:
        writer = HashedWriter(file)
        writer.write(struct.pack("<8sIIQ", magic, version, len(encoded), n_payload) + encoded)
        writer.write_digest()
        writer.write(data[HEAD_BYTES + n_header + DIGEST_BYTES : -DIGEST_BYTES])
        writer.write_digest()


def test_every_byte_counts(tiny_dir: Path, saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    n_header = struct.unpack_from("<I", data, 12)[0]
    start = HEAD_BYTES + n_header + DIGEST_BYTES
    places = {
        "is no saved session": [0, 7],
        "format version": [8, 11],
        "damaged: it has .* bytes and should have": [12, 16, 23],
        "the checksum of its header is wrong": [HEAD_BYTES, start - DIGEST_BYTES - 1, start - DIGEST_BYTES, start - 1],
        "damaged: its checksum is wrong": [
            *(start, start + 4 * 69, start + 4 * 70, len(data) // 2, len(data) - DIGEST_BYTES - 1),
            *(len(data) - DIGEST_BYTES, len(data) - 1),
        ],
    }
    damaged = tmp_path / "damaged.session"
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run:
        for reason, offsets in places.items():
            for offset in offsets:
                changed = bytearray(data)
                changed[offset] ^= 1
                damaged.write_bytes(changed)
                refused(run, damaged, reason)
        for cut in (b"", data[:5], data[:HEAD_BYTES]):
            damaged.write_bytes(cut)
            refused(run, damaged, "is no saved session" if len(cut) < HEAD_BYTES else "should have")
        for changed in (data[:-1], data[: len(data) // 2], data + b"\0"):
            damaged.write_bytes(changed)
            refused(run, damaged, f"damaged: it has {len(changed)} bytes and should have {len(data)}")
        damaged.write_bytes(data)
        Session.load(run, damaged).close()


def test_another_version_is_refused_with_both_numbers(tiny_dir: Path, saved: Path, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    struct.pack_into("<I", data, 8, 2)
    path = tmp_path / "new.session"
    path.write_bytes(data)
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run:
        refused(run, path, "format version 2, and this minfer reads version 1")


def test_another_model_is_refused_with_both_names(tiny_dir: Path, saved: Path, tmp_path: Path) -> None:
    # The same metadata and shapes, other weights.
    other = write_tiny(tmp_path / "other.gguf", replace(TINY_SPECS["qwen3"], seed=99))
    with tiny_runtime(other) as run:
        refused(run, saved, r"saved with another model: Tiny qwen3 \(\w{32}\), and this is Tiny qwen3 \(\w{32}\)")
    copy = tmp_path / "copy.gguf"
    shutil.copy(tiny_path(tiny_dir, "qwen3"), copy)
    with tiny_runtime(copy) as run:
        Session.load(run, saved).close()


def test_another_cache_type_is_refused_with_both_names(tiny_dir: Path, saved: Path) -> None:
    with tiny_runtime(tiny_path(tiny_dir, "qwen3"), kv_types=KV_TYPES["k-f16-v-q8_0"]) as run:
        refused(run, saved, "has keys in f32 and values in f32, and .* loaded with keys in f16 and values in q8_0")


def test_another_kind_is_refused_and_the_callers_own_comes_back(tiny_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.conversation"
    extra = {"messages": [{"role": "user", "content": "naïve 🙂"}], "n": 3, "none": None}
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run:
        sequence = run.sequence()
        sequence.reserve(3)
        sequence.append([1, 2, 3])
        save_sequence(path, run, sequence, kind="conversation", extra=extra)
        refused(run, path, "it is a saved conversation, and no session")
        loaded, again = load_sequence(path, run, kind="conversation")
        assert (again, loaded.tokens) == (extra, (1, 2, 3))
        for bad in ({"a": object()}, {"a": float("nan")}):
            with pytest.raises(ParameterError, match="must be JSON"):
                save_sequence(path, run, sequence, kind="conversation", extra=bad)
        assert load_sequence(path, run, kind="conversation")[1] == extra


def test_a_header_of_another_shape_is_refused(tiny_dir: Path, saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "odd.session"
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run:
        with_header(saved, path, lambda header: header | {"colour": "red"})
        refused(run, path, "its header is not that of version 1")
        with_header(saved, path, lambda header: header | {"n_tokens": 71})
        refused(run, path, "bytes can't be of 71 tokens")


def test_a_context_that_is_too_short(tiny_dir: Path, saved: Path) -> None:
    with tiny_runtime(tiny_path(tiny_dir, "qwen3"), n_ctx=69) as run:
        with pytest.raises(ContextError, match="has 70 tokens, and the context has 69") as caught:
            Session.load(run, saved)
        assert (caught.value.n_positions, caught.value.n_ctx) == (70, 69)
        assert run.pool.n_free == run.pool.n_pages


@pytest.mark.parametrize("name", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(
    name: str, tiny_dir: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.session"
    shutil.copy(saved, path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run, Session(run) as session:
        session.extend(TOKENS[:100])
        with monkeypatch.context() as patch:
            patch.setattr(*((HashedWriter, "write_digest") if name == "write" else (hashed_file.os, name)), full)
            with pytest.raises(SessionFileError, match="can't be written: No space left on device"):
                session.save(path)
        assert [each.name for each in tmp_path.iterdir()] == ["a.session"]
        assert path.read_bytes() == saved.read_bytes()
        session.save(path)
        assert path.stat().st_size > saved.stat().st_size
        session.truncate(0)
        assert run.pool.n_free == run.pool.n_pages


def test_only_the_owner_can_read_it(saved: Path) -> None:
    if os.name == "posix":
        assert saved.stat().st_mode & 0o777 == 0o600


def test_places_that_cannot_be(tiny_dir: Path, tmp_path: Path) -> None:
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run, Session(run) as session:
        for path in (tmp_path / "no" / "a.session", tmp_path):
            with pytest.raises(SessionFileError, match="can't be written"):
                session.save(path)
            refused(run, path, "can't be read")
        assert list(tmp_path.iterdir()) == []


def test_what_is_saved_is_what_was_there_at_the_call(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a file is being written, the session goes on, is cut and loses a range."""
    path, quiet = tmp_path / "a.session", tmp_path / "b.session"
    steps = iter([lambda s: s.extend(TOKENS[100:120]), lambda s: s.truncate(30), lambda s: s.drop(3, 9)])
    with tiny_runtime(tiny_path(tiny_dir, "qwen3"), max_tokens=250) as run, Session(run) as session:
        session.extend(TOKENS[:100])
        session.save(quiet)
        write = HashedWriter.write

        def busy(self: HashedWriter, data: bytes) -> None:
            write(self, data)
            next(steps, lambda s: s.extend(TOKENS[:2]))(session)

        with monkeypatch.context() as patch:
            patch.setattr(HashedWriter, "write", busy)
            session.save(path)
    assert path.read_bytes() == quiet.read_bytes()


def test_a_closed_model_says_so(tiny_dir: Path, saved: Path, tmp_path: Path) -> None:
    with tiny_runtime(tiny_path(tiny_dir, "qwen3")) as run:
        session = Session(run)
    with pytest.raises(ParameterError, match="the model is closed"):
        session.save(tmp_path / "a.session")
    with pytest.raises(ParameterError, match="the model is closed"):
        Session.load(run, saved)


def fingerprint(path: Path) -> str:
    with open_gguf(path) as file:
        return ModelIdentity(file, "").fingerprint


def test_a_fingerprint_is_of_the_whole_model(tmp_path: Path) -> None:
    spec = TINY_SPECS["llama-tied"]
    path = write_tiny(tmp_path / "a.gguf", spec)
    first = fingerprint(path)
    changes: Sequence[dict[str, object]] = ({"seed": 5}, {"norm_eps": 1e-6}, {"freq_base": 5000.0}, {"n_layers": 1})
    others = [fingerprint(write_tiny(tmp_path / f"{i}.gguf", replace(spec, **change)))  # type: ignore[arg-type]
              for i, change in enumerate(changes)]  # fmt: skip
    assert len({first, *others}) == 5
    with open_gguf(path) as file:
        tensors = list(file.tensors.values())
    for info in tensors:
        for offset in (info.offset, info.offset + info.n_bytes - 1):
            data = bytearray(path.read_bytes())
            data[offset] ^= 1
            changed = tmp_path / "changed.gguf"
            changed.write_bytes(data)
            assert fingerprint(changed) != first, info.name


def test_sessions_of_a_loaded_model(tiny_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    with minfer.load(tiny_path(tiny_dir)) as model, model.session() as session:
        session.extend(TOKENS[:50])
        session.save(path)
        want = session.extend(TOKENS[50:60])
    with minfer.load(tiny_path(tiny_dir)) as model, model.load_session(path) as session:
        assert same_bits(session.extend(TOKENS[50:60]), want)
