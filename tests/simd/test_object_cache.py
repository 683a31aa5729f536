"""The cache of compiled objects: what makes an entry, damage, privacy, concurrent and killed processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minfer.errors import MinferWarning
from minfer.simd import (
    Kernel,
    KernelIR,
    NativeModule,
    ObjectCache,
    ObjectCacheError,
    digest_of_package,
    f32,
    host_target,
    host_target_names,
    i64,
    llvm,
    load_or_compile,
    open_cache,
    ptr,
    target_named,
)
from minfer.simd import (
    cache as cache_module,
)
from minfer.simd.signature import Signature

TARGET = host_target()
POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has other means of privacy")


def scale(factor: float) -> list[KernelIR]:
    k = Kernel("scale", x=ptr(f32), n=i64)
    x, n = k.args
    with k.loop(0, n) as i:
        k.store(x + i, k.load(x + i) * factor)
    return [k.finish()]


def result_of(module: NativeModule) -> float:
    x = np.ones(3, np.float32)
    module["scale"](x, 3)
    return float(x[2])


def never_built() -> Iterable[KernelIR]:
    raise AssertionError("the cache should have had it")


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return open_cache(tmp_path / "kernels", "the sources")


def entry_of(cache: ObjectCache) -> Path:
    (entry,) = cache.directory.iterdir()
    return entry


def test_a_second_start_neither_traces_nor_optimises_nor_compiles(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_or_compile("scale 2", lambda: scale(2), TARGET, cache)
    assert not first.from_cache
    assert result_of(first) == 2

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("LLVM was asked to compile")

    for name in ("emit_object", "emit_assembly", "_optimised"):
        monkeypatch.setattr(llvm, name, refuse)
    second = load_or_compile("scale 2", never_built, TARGET, open_cache(cache.directory, "the sources"))
    assert second.from_cache
    assert result_of(second) == 2
    assert second["scale"].signature == first["scale"].signature


def test_a_process_with_a_warm_cache_does_not_even_import_the_lowering(cache: ObjectCache) -> None:
    load_or_compile("scale 2", lambda: scale(2), TARGET, cache)
    script = f"""
import sys
from pathlib import Path
from minfer.simd import open_cache, load_or_compile, host_target
module = load_or_compile("scale 2", None, host_target(), open_cache(Path({str(cache.directory)!r}), "the sources"))
assert module.from_cache
assert "minfer.simd.lower" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_other_sources_keys_and_targets_are_other_entries(cache: ObjectCache) -> None:
    keys = {cache.key("a", TARGET), cache.key("b", TARGET), ObjectCache(cache.directory, "changed").key("a", TARGET)}
    keys |= {cache.key("a", target_named(name)) for name in host_target_names()}
    assert len(keys) == 2 + len(host_target_names())


@pytest.mark.parametrize("what", ["name", "triple", "cpu", "features"])
def test_targets_that_differ_in_one_thing_are_other_entries(cache: ObjectCache, what: str) -> None:
    """Such as a machine whose system hides what its CPU has, beside one of the same CPU that shows it."""
    assert cache.key("a", replace(TARGET, **{what: "other"})) != cache.key("a", TARGET)


def test_other_versions_of_llvm_are_other_entries(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.key("a", TARGET)
    monkeypatch.setattr(llvm, "versions", lambda: ("0.0", "99"))
    assert cache.key("a", TARGET) != before


def test_changed_sources_are_compiled_anew(cache: ObjectCache) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)
    changed = open_cache(cache.directory, "other sources")
    module = load_or_compile("scale", lambda: scale(3), TARGET, changed)
    assert not module.from_cache
    assert result_of(module) == 3
    assert result_of(load_or_compile("scale", never_built, TARGET, cache)) == 2


def test_the_digest_sees_every_python_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    source, inner = tmp_path / "a.py", tmp_path / "inner" / "b.py"
    source.write_text("x = 1")
    inner.write_text("y = 1")
    digests = [digest_of_package(tmp_path)]
    (tmp_path / "notes.txt").write_text("not a source")
    assert digest_of_package(tmp_path) == digests[0]
    inner.write_text("y = 2")
    digests.append(digest_of_package(tmp_path))
    source.rename(tmp_path / "c.py")
    digests.append(digest_of_package(tmp_path))
    (tmp_path / "d.py").touch()
    digests.append(digest_of_package(tmp_path))
    digests.append(digest_of_package(tmp_path, tmp_path / "inner"))
    assert len(set(digests)) == len(digests)


def test_damaged_entries_are_found_and_rebuilt(cache: ObjectCache) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)
    entry, key = entry_of(cache), cache.key("scale", TARGET)
    good = entry.read_bytes()
    damaged = [good[:length] for length in (0, 1, 16, 17, 48, 49, 60, len(good) // 2, len(good) - 1)]
    damaged += [good + b"\0"]
    for position in [*range(0, 90, 3), *range(90, len(good), 37)]:
        changed = bytearray(good)
        changed[position] ^= 0x10
        damaged.append(bytes(changed))
    for content in damaged:
        entry.write_bytes(content)
        assert cache.load(key) is None
    module = load_or_compile("scale", lambda: scale(2), TARGET, cache)
    assert not module.from_cache
    assert entry.read_bytes() == good


def test_an_entry_under_another_name_is_damaged(cache: ObjectCache) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)
    entry_of(cache).rename(cache.directory / f"{cache.key('other', TARGET)}.kernels")
    assert cache.load(cache.key("other", TARGET)) is None


@POSIX
def test_the_cache_is_private_to_the_user(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "new" / "kernels", "s")
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    load_or_compile("scale", lambda: scale(2), TARGET, cache)
    assert stat.S_IMODE(entry_of(cache).stat().st_mode) == 0o600


@POSIX
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_directory_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ObjectCacheError, match=f"others can write to .*mode {mode:o}"):
        open_cache(tmp_path, "s")


@POSIX
def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ObjectCacheError, match=r"belongs to user .* run as user 12345"):
        open_cache(tmp_path / "kernels", "s")


@POSIX
def test_an_entry_that_others_write_to_is_not_run(cache: ObjectCache) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)
    entry_of(cache).chmod(0o666)
    with pytest.raises(ObjectCacheError, match="others can write to"):
        load_or_compile("scale", never_built, TARGET, cache)


@POSIX
def test_an_entry_that_is_a_link_is_not_followed(cache: ObjectCache, tmp_path: Path) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)
    entry = entry_of(cache)
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ObjectCacheError, match="can't be read"):
        load_or_compile("scale", never_built, TARGET, cache)


@pytest.mark.parametrize("below", ["kernels", "kernels/below"])
def test_without_a_directory_kernels_are_compiled_and_not_kept(tmp_path: Path, below: str) -> None:
    (tmp_path / "kernels").touch()
    with pytest.warns(MinferWarning, match=r"can't be kept in .*kernels.*MINFER_CACHE_DIR"):
        cache = open_cache(tmp_path / below, "s")
    assert cache is None
    assert result_of(load_or_compile("scale", lambda: scale(2), TARGET, cache)) == 2


def test_what_can_t_be_written_is_told_and_used_all_the_same(cache: ObjectCache) -> None:
    cache.directory.rmdir()
    with pytest.warns(MinferWarning, match=r"can't be kept in .*: No such file or directory; .*MINFER_CACHE_DIR"):
        assert result_of(load_or_compile("scale", lambda: scale(2), TARGET, cache)) == 2


@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_a_full_disk_is_told_and_nothing_is_left_behind(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    match call:
        case "open":
            monkeypatch.setattr(tempfile, "mkstemp", full_disk)
        case "write":
            monkeypatch.setattr(cache_module, "_encode", full_disk)
        case "replace":
            monkeypatch.setattr(os, "replace", full_disk)
    messages = set()
    for factor in (2, 3):
        with pytest.warns(MinferWarning, match="No space left on device") as told:
            module = load_or_compile(f"scale {factor}", lambda factor=factor: scale(factor), TARGET, cache)
        assert result_of(module) == factor
        messages.add(str(told[0].message))
    assert list(cache.directory.iterdir()) == []
    assert len(messages) == 1  # so that it is shown once


def test_a_directory_that_can_only_be_read_serves_what_it_has(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "mkstemp", read_only)
    monkeypatch.setattr(os, "utime", read_only)
    assert load_or_compile("scale", never_built, TARGET, open_cache(cache.directory, "the sources")).from_cache


def test_an_entry_that_can_t_be_read_is_made_anew(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    load_or_compile("scale", lambda: scale(2), TARGET, cache)

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", denied)
        assert cache.load(cache.key("scale", TARGET)) is None


def test_windows_may_refuse_to_replace_an_entry_that_is_being_read(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.store("key", b"image", [])

    def in_use(*_: object) -> None:
        raise PermissionError(13, "in use")

    monkeypatch.setattr(os, "replace", in_use)
    cache.store("key", b"image", [])
    assert cache.load("key") == (b"image", ())
    assert entry_of(cache).name == "key.kernels"
    with pytest.raises(PermissionError, match="in use"):
        cache.store("other", b"image", [])


def test_entries_keep_signatures(cache: ObjectCache) -> None:
    signatures = (Signature("a", (("x", "ptr(f32)"), ("n", "i64"))), Signature("b", ()))
    cache.store("key", b"\n\t\0image", signatures)
    assert cache.load("key") == (b"\n\t\0image", signatures)


def test_the_least_recently_used_entries_go(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_MAX_ENTRIES", 3)
    for age, name in enumerate(("young", "middle", "old")):
        cache.store(name, b"image", [])
        os.utime(cache.directory / f"{name}.kernels", (0, 1e9 - age))
    assert cache.load("old") is not None  # which makes it the newest
    cache.store("another", b"image", [])
    assert sorted(path.stem for path in cache.directory.iterdir()) == ["another", "old", "young"]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from minfer.simd import Kernel, f32, i64, ptr, host_target, load_or_compile, open_cache
def build(factor):
    k = Kernel("scale", x=ptr(f32), n=i64)
    x, n = k.args
    with k.loop(0, n) as i:
        k.store(x + i, k.load(x + i) * factor)
    return [k.finish()]
cache = open_cache(Path(sys.argv[1]), "the sources")
"""
WRITE_ALL = """
for attempt in range(3):
    for factor in range(5):
        module = load_or_compile(f"scale {factor}", lambda: build(factor), host_target(), cache)
        x = np.ones(1, np.float32)
        module["scale"](x, 1)
        assert x[0] == factor
"""
DIE_WHILE_WRITING = """
import os
os.replace = lambda *_: os._exit(7)
load_or_compile("scale 2", lambda: build(2), host_target(), cache)
"""


def test_processes_share_a_cache(cache: ObjectCache) -> None:
    command = [sys.executable, "-c", WRITER + WRITE_ALL, str(cache.directory)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    names = sorted(path.name for path in cache.directory.iterdir())
    assert names == sorted(f"{cache.key(f'scale {factor}', TARGET)}.kernels" for factor in range(5))
    assert result_of(load_or_compile("scale 3", never_built, TARGET, cache)) == 3


def test_a_killed_process_leaves_no_entry_and_its_rest_is_swept_up(cache: ObjectCache) -> None:
    command = [sys.executable, "-c", WRITER + DIE_WHILE_WRITING, str(cache.directory)]
    assert subprocess.run(command, check=False).returncode == 7
    rest = entry_of(cache)
    assert rest.suffix == ".tmp"
    assert cache.load(cache.key("scale 2", TARGET)) is None
    assert result_of(load_or_compile("scale 2", lambda: scale(2), TARGET, cache)) == 2
    assert rest.exists()  # it could be a writer at work
    os.utime(rest, (0, time.time() - 7200))
    cache.store("another", b"image", [])
    assert not rest.exists()
