"""The names of the model, and plain ways to ask: HEAD, and HTTP/1.0 without a name."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from minfer.serve import ServerConfig
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running, running

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
NAMES = ("fake", "hf:owner/name/file.gguf", "default", "fake.gguf")


@pytest.fixture(scope="module")
def named(qwen: Tokenizer) -> Iterator[Running]:
    config = ServerConfig(
        port=0, model_aliases=("hf:owner/name/file.gguf", "fake"), unlisted_names=("default", "fake.gguf")
    )
    with running(config, lambda: FakeEngine(qwen)) as server:
        yield server


def test_a_model_answers_to_all_its_names(named: Running) -> None:
    with named.client() as api:
        listed = [card["id"] for card in api.get("/v1/models").json()["data"]]
        assert listed == ["fake", "hf:owner/name/file.gguf"]
        assert api.get("/v1/models/").json() == api.get("/v1/models").json()
        for name in NAMES:
            assert api.post(CHAT, json={"model": name, **ASK}).json()["model"] == "fake"
            card = api.get(f"/v1/models/{name}").json()
            assert (card["id"], card["object"], card["meta"]["n_ctx"]) == (name, "model", 4096)
        quoted = api.get("/v1/models/hf%3Aowner%2Fname%2Ffile.gguf")
        assert quoted.json()["id"] == "hf:owner/name/file.gguf"


def test_an_unknown_name_is_told_those_that_there_are(named: Running) -> None:
    with named.client() as api:
        for answer in (api.get("/v1/models/gpt-4"), api.post(CHAT, json={"model": "gpt-4", **ASK})):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "model_not_found")
            assert all(name in error["message"] for name in (*NAMES, "--any-model-name"))


def test_any_name(qwen: Tokenizer) -> None:
    config = ServerConfig(port=0, takes_any_model_name=True)
    with running(config, lambda: FakeEngine(qwen)) as server, server.client() as api:
        assert api.post(CHAT, json={"model": "gpt-4", **ASK}).json()["model"] == "fake"
        assert api.get("/v1/models/gpt-4").json()["id"] == "gpt-4"
        assert [card["id"] for card in api.get("/v1/models").json()["data"]] == ["fake"]


@pytest.mark.parametrize(
    "path", ["/", "/page/page.js", "/health", "/metrics", "/docs", "/openapi.json", "/v1/models", "/v1/models/fake"]
)
def test_head_is_get_without_a_body(api: httpx.Client, path: str) -> None:
    got, head = api.get(path), api.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # which counts
        assert head.headers["content-length"] == got.headers["content-length"]


def test_head_where_get_does_not_work(api: httpx.Client) -> None:
    assert (api.head(CHAT).status_code, api.head("/nothing").status_code) == (405, 404)


def ask_plainly(port: int, request: bytes) -> bytes:
    """The answer to bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as peer:
        peer.sendall(request)
        return b"".join(iter(lambda: peer.recv(65536), b""))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /health HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET /health HTTP/1.0\r\nHost:\r\n\r\n", b"403"),
        (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"400"),
    ],
)
def test_a_request_without_a_name(server: Running, request_: bytes, status: bytes) -> None:
    answer = ask_plainly(server.port, request_)
    assert answer.split(b" ", 2)[1] == status
    assert answer.endswith(b"\r\n\r\n") is request_.startswith(b"HEAD")


def test_a_nameless_request_from_elsewhere(qwen: Tokenizer) -> None:
    """A server that others reach keeps to the names that it was given."""
    config = ServerConfig(host="0.0.0.0", port=0, allowed_hosts=("minfer.example",))
    with running(config, lambda: FakeEngine(qwen)) as server:
        assert b" 403 " in ask_plainly(server.port, b"GET /health HTTP/1.0\r\n\r\n").splitlines()[0]
