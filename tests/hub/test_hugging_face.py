from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from minfer.errors import DownloadError, ParameterError
from minfer.hub import models_dir, resolve_model
from minfer.hub.hugging_face import HuggingFaceFile, parse_hugging_face_name

NAME = "hf:owner/repo:file.gguf"
CONTENT = b"GGUF" * 1000


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def raising(error: BaseException) -> Callable[..., str]:
    def download(*_: object, **__: object) -> str:
        raise error

    return download


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    response: Any = SimpleNamespace(status_code=status, headers={}, request=None)
    return kind("refused", response=response)


# Names


@pytest.mark.parametrize(
    ("name", "repo_id", "file"),
    [
        (NAME, "owner/repo", "file.gguf"),
        ("hf:Qwen/Qwen2.5-0.5B_x:sub/Dir/q4_k_m.GGUF", "Qwen/Qwen2.5-0.5B_x", "sub/Dir/q4_k_m.GGUF"),
    ],
)
def test_names(name: str, repo_id: str, file: str) -> None:
    assert parse_hugging_face_name(name) == HuggingFaceFile(repo_id, file)


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:owner/repo",
        "hf:owner/repo:",
        "hf:repo:file.gguf",
        "hf:a/b/c:file.gguf",
        "hf:owner/repo:file.safetensors",
        "hf:owner/repo:../../file.gguf",
        "hf:owner/repo:/file.gguf",
        "hf:owner/repo:.cache/file.gguf",
        "hf:owner/repo:a//file.gguf",
        "hf:../repo:file.gguf",
        "hf:owner/..:file.gguf",
        "hf:owner/repo:..\\file.gguf",
        "hf:owner/repo:main:file.gguf",
        "hf: owner/repo:file.gguf",
    ],
)
def test_a_name_of_another_form_is_refused_before_anything_is_asked(
    name: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(AssertionError("asked")))
    with pytest.raises(ParameterError, match=r"hf:owner/repo:file\.gguf"):
        resolve_model(name, cache_dir=cache_dir)


# Errors


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            http_error(errors.GatedRepoError, 403),
            r"owner/repo is gated: accept its terms at https://huggingface.co/owner/repo",
        ),
        (http_error(errors.RepositoryNotFoundError, 404), "there is no repository owner/repo"),
        (http_error(errors.RemoteEntryNotFoundError, 404), r"owner/repo has no file file\.gguf"),
        (errors.LocalEntryNotFoundError("no connection"), "no connection.*is this machine offline"),
        (errors.OfflineModeIsEnabled("HF_HUB_OFFLINE is set"), "HF_HUB_OFFLINE is set.*is this machine offline"),
        (http_error(errors.HfHubHTTPError, 500), r"file\.gguf could not be downloaded .*: refused"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_errors_are_told_with_their_reason(
    error: Exception, reason: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(error))
    with pytest.raises(DownloadError, match=reason) as caught:
        resolve_model(NAME, cache_dir=cache_dir)
    assert caught.value.__cause__ is error


def test_ctrl_c_stays_ctrl_c(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        resolve_model(NAME, cache_dir=cache_dir)


def test_a_file_in_the_cache_needs_no_network(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(AssertionError("asked")))
    path = models_dir(cache_dir) / "hf" / "owner" / "repo" / "file.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert resolve_model(NAME, cache_dir=cache_dir) == path


# A real transfer by huggingface_hub, from a server on this machine


class Hub(BaseHTTPRequestHandler):
    """Answers as the Hub does for one file."""

    def do_HEAD(self) -> None:
        found = self.path == "/owner/repo/resolve/main/file.gguf"
        self.send_response(200 if found else 404)
        self.send_header("ETag", '"0123456789abcdef"')
        self.send_header("X-Repo-Commit", "0" * 40)
        if not found:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(CONTENT) if found else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@pytest.fixture
def _hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    download = functools.partial(huggingface_hub.hf_hub_download, endpoint=endpoint, token=False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("_hub")
def test_a_download_lands_in_the_cache_and_shows_its_progress(
    cache_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, object]] = []

    class Recorder:
        def start(self, description: str, total_bytes: int | None) -> None:
            calls.append((description, total_bytes))

        def advance(self, n_bytes: int) -> None:
            calls.append(("advance", n_bytes))

        def finish(self) -> None:
            calls.append(("finish", None))

    path = resolve_model(NAME, cache_dir=cache_dir, progress=Recorder())
    assert path == models_dir(cache_dir) / "hf" / "owner" / "repo" / "file.gguf"
    assert path.read_bytes() == CONTENT
    assert calls[0] == ("Downloading file.gguf", len(CONTENT))
    assert calls[-1] == ("finish", None)
    advances = calls[1:-1]
    assert {call for call, _ in advances} == {"advance"}
    assert sum(n_bytes for _, n_bytes in advances if isinstance(n_bytes, int)) == len(CONTENT)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("_hub")
def test_a_download_without_progress_shows_nothing(cache_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert resolve_model(NAME, cache_dir=cache_dir).read_bytes() == CONTENT
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("_hub")
def test_a_file_that_the_repository_lacks(cache_dir: Path) -> None:
    with pytest.raises(DownloadError, match=r"owner/repo has no file other\.gguf"):
        resolve_model("hf:owner/repo:other.gguf", cache_dir=cache_dir)
