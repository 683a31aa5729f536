"""Pages of other origins: what browsers are told of whether they may call."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from minfer.errors import ParameterError
from minfer.serve import ServerConfig
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import running

CHAT = "/v1/chat/completions"
ALLOWED, OTHER = "http://localhost:3000", "https://evil.example"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}]}


@pytest.fixture(scope="module")
def api(qwen: Tokenizer) -> Iterator[httpx.Client]:
    """A client of a server that asks for a key, and lets the pages of one origin in."""
    config = ServerConfig(port=0, cors_origins=(ALLOWED,), api_keys=("right",))
    with running(config, lambda: FakeEngine(qwen)) as server, server.client() as client:
        yield client


def preflight(api: httpx.Client, origin: str, **more: str) -> httpx.Response:
    """What a browser asks before the official client's request."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang,x-stainless-retry-count",
    }
    return api.options(CHAT, headers=headers | more)


def test_what_an_allowed_origin_asks_for_is_allowed(api: httpx.Client) -> None:
    answer = preflight(api, ALLOWED)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == ALLOWED
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-allow-headers"].endswith("x-stainless-lang,x-stainless-retry-count")
    assert int(answer.headers["access-control-max-age"]) > 0
    assert "Origin" in answer.headers["vary"]
    assert "access-control-allow-private-network" not in answer.headers
    private = preflight(api, ALLOWED, **{"Access-Control-Request-Private-Network": "true"})
    assert private.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("origin", [OTHER, "http://localhost:3001", "https://localhost:3000", "null"])
def test_other_origins_are_told_nothing(api: httpx.Client, origin: str) -> None:
    asked = preflight(api, origin, **{"Access-Control-Request-Private-Network": "true"})
    assert (asked.status_code, asked.json()["error"]["code"]) == (403, "unknown_origin")
    called = api.post(CHAT, json=HELLO, headers={"Origin": origin, "Authorization": "Bearer right"})
    for answer in (asked, called):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize(("key", "status"), [("right", 200), ("wrong", 401)])
def test_answers_and_errors_may_be_read(api: httpx.Client, key: str, status: int) -> None:
    answer = api.post(CHAT, json=HELLO, headers={"Origin": ALLOWED, "Authorization": f"Bearer {key}"})
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == ALLOWED
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


def test_any_origin(qwen: Tokenizer) -> None:
    config = ServerConfig(port=0, cors_origins=("*",))
    with running(config, lambda: FakeEngine(qwen)) as server, server.client() as api:
        assert preflight(api, OTHER).headers["access-control-allow-origin"] == OTHER
        assert api.get("/health", headers={"Origin": "null"}).headers["access-control-allow-origin"] == "null"


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:3000/", "HTTP://LocalHost", "localhost:3000", "http://a/b", "http://a:80", "https://a:443", ""],
)
def test_an_origin_that_no_browser_sends(origin: str) -> None:
    with pytest.raises(ParameterError, match="no origin"):
        ServerConfig(cors_origins=(origin,))
