"""The server around the answers: health, metrics, keys, names, logs, loading and draining."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from minfer.errors import ModelError, ParameterError
from minfer.sampling import SamplingParams
from minfer.serve import Limits, ServerConfig, create_app
from minfer.serve.auth import host_name, served_names
from minfer.serve.engine_protocol import EngineClosedError, ServeRequest
from minfer.serve.lifecycle import Server, listen
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running, metric, running

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Hello!"}]}
KEY = {"Authorization": "Bearer secret-2"}


@pytest.fixture(scope="module")
def guarded(qwen: Tokenizer) -> Iterator[Running]:
    """A server with keys, CORS and a name of its own."""
    config = ServerConfig(
        port=0,
        api_keys=("secret-1", "secret-2"),
        cors_origins=("https://friend.example",),
        allowed_hosts=("minfer.example",),
        log_prompts=True,
    )
    with running(config, lambda: FakeEngine(qwen)) as server:
        yield server


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    for _ in range(1000):
        if condition():
            break
        threading.Event().wait(0.01)
    assert condition()


def test_health_and_models(api: httpx.Client, engine: FakeEngine) -> None:
    assert api.get("/health").json() == {"status": "ok"}
    models = api.get("/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["fake", "alias"]
    meta = models[0]["meta"]
    assert (meta["n_ctx"], meta["n_vocab"]) == (engine.n_ctx, engine.n_vocab)


def test_metrics_count(api: httpx.Client, engine: FakeEngine) -> None:
    before = api.get("/metrics").text
    for _ in range(2):
        assert api.post(CHAT, json=ASK).status_code == 200
    assert api.post(CHAT, json={}).status_code == 400
    after = api.get("/metrics").text

    def grown(name: str, **labels: str) -> float:
        try:
            start = metric(before, name, **labels)
        except AssertionError:
            start = 0
        return metric(after, name, **labels) - start

    assert grown("minfer_requests_total", endpoint=CHAT, outcome="ok") == 2
    assert grown("minfer_requests_total", endpoint=CHAT, outcome="invalid") == 1
    assert grown("minfer_time_to_first_token_seconds_count") == 2
    assert grown("minfer_time_per_token_seconds_count") == 2
    n_prompt = len(engine.seen[0].prompt_tokens)
    assert grown("minfer_tokens_total", kind="prefilled") == n_prompt + 1
    assert grown("minfer_tokens_total", kind="reused") == n_prompt - 1
    n_generated = grown("minfer_tokens_total", kind="generated")
    assert n_generated > 20
    assert grown("minfer_step_seconds_count") >= n_generated
    assert grown("minfer_batch_sequences_sum") == grown("minfer_batch_sequences_count") > 0
    pages = {state: metric(after, "minfer_kv_pages", state=state) for state in ("free", "cached", "used")}
    assert (pages["used"], sum(pages.values())) == (0, engine.snapshot().n_pages)


def test_busy_shows_in_the_metrics(server: Running, api: httpx.Client, engine: FakeEngine) -> None:
    engine.hold()
    with server.client() as other, other.stream("POST", CHAT, json={**ASK, "stream": True, "n": 3}):
        engine.allow(4)
        engine.wait_until(lambda now: now.n_generated_tokens > 0 and now.n_active == 1)
        text = api.get("/metrics").text
        assert metric(text, "minfer_active_requests") == 1
        assert metric(text, "minfer_kv_pages", state="used") == 4
        assert metric(text, "minfer_batch_capacity") == 4


def test_keys(guarded: Running) -> None:
    with guarded.client() as api:
        for headers in ({}, {"Authorization": "Bearer secret-3"}, {"Authorization": "Basic secret-1"}):
            for answer in (api.post(CHAT, json=ASK, headers=headers), api.get("/metrics", headers=headers)):
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
        for key in ("secret-1", "secret-2"):
            assert api.post(CHAT, json=ASK, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        for path in ("/", "/page/style.css", "/health", "/docs", "/openapi.json"):
            assert api.get(path).status_code == 200
        odd = api.post(CHAT, json=ASK, headers={"Authorization": b"Bearer \xff"})  # type: ignore[dict-item]
        assert odd.status_code == 401


def test_names(guarded: Running, api: httpx.Client) -> None:
    with guarded.client() as client:
        for host in ("minfer.example", "minfer.example:8080", "localhost:1", "127.0.0.1"):
            assert client.get("/health", headers={"Host": host}).status_code == 200
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 403
    assert api.get("/health", headers={"Host": "evil.example:80"}).json()["error"]["code"] == "unknown_host"


def test_names_by_address() -> None:
    assert served_names(ServerConfig(host="0.0.0.0")) is None
    assert "localhost" in (served_names(ServerConfig(host="::1")) or ())
    assert [host_name(h) for h in ("A.b:1", "[::1]:80", "[::1]", "")] == ["a.b", "::1", "::1", ""]


def test_cross_origin_calls(guarded: Running, api: httpx.Client) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with guarded.client() as client:
        for origin, allowed in (("https://friend.example", True), ("https://evil.example", False)):
            answer = client.options(CHAT, headers={"Origin": origin, **asked})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
            for key, status in ((KEY, 200), ({}, 401)):  # errors can be read from there too
                answer = client.post(CHAT, json=ASK, headers={"Origin": origin, **key})
                assert answer.status_code == status
                assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
    answer = api.options(CHAT, headers={"Origin": "https://friend.example", **asked})
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


def test_the_access_log(
    guarded: Running, api: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "minfer.access"):
        answer = api.post(CHAT, json=ASK)
        api.post(CHAT, json={**ASK, "temperature": -1})
        with guarded.client() as client:
            client.post(CHAT, json=ASK, headers=KEY)
        wait_for(lambda: len(caplog.records) == 3)  # a line is written after the answer is sent
    good, bad, with_prompt = [json.loads(record.getMessage()) for record in caplog.records]
    assert good["id"] == answer.headers["x-request-id"]
    assert (good["method"], good["path"], good["status"], good["outcome"]) == ("POST", CHAT, 200, "ok")
    assert good["n_prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
    assert good["n_generated_tokens"] == answer.json()["usage"]["completion_tokens"]
    assert good["finish"] == ["end_of_generation"]
    assert 0 <= good["queue_s"] <= good["first_token_s"] <= good["duration_s"]
    assert (bad["status"], bad["outcome"], bad["error"]) == (400, "invalid", "invalid_value")
    assert "Hello" not in json.dumps([good, bad])
    assert with_prompt["prompt"]["messages"][0]["content"] == "Hello!"


def test_loading(qwen: Tokenizer) -> None:
    loaded = threading.Event()

    def load() -> FakeEngine:
        assert loaded.wait(TIMEOUT_S)
        return FakeEngine(qwen)

    with running(ServerConfig(port=0), load, wait=False) as server, server.client() as api:
        health = api.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        for answer in (api.post(CHAT, json=ASK), api.get("/v1/models"), api.post("/tokenize", json={"content": "a"})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "loading")
            assert int(answer.headers["retry-after"]) > 0
        assert api.get("/metrics").status_code == 200
        loaded.set()
        assert server.server.ready.wait(TIMEOUT_S)
        assert api.get("/health").status_code == 200
        assert api.post(CHAT, json=ASK).status_code == 200


def test_stopping_does_not_wait_for_loading(qwen: Tokenizer) -> None:
    may_load, engines = threading.Event(), []

    def load() -> FakeEngine:
        assert may_load.wait(TIMEOUT_S)
        engines.append(FakeEngine(qwen))
        return engines[0]

    with running(ServerConfig(port=0), load, wait=False) as server:
        server.stop()
        may_load.set()
        assert server.server.ready.wait(TIMEOUT_S)
    with pytest.raises(EngineClosedError):
        engines[0].submit(ServeRequest(prompt_tokens=(1,), sampling=SamplingParams(), max_tokens=1), print)


def test_a_model_that_does_not_load() -> None:
    def load() -> FakeEngine:
        raise ModelError("broken file")

    config = ServerConfig(port=0)
    with pytest.raises(ModelError, match="broken file"):
        Server(create_app(config), load).run_until_stopped(listen(config))


def test_an_address_that_is_taken(server: Running) -> None:
    with pytest.raises(ParameterError, match=f"port {server.port}"):
        listen(ServerConfig(port=server.port))


@pytest.mark.parametrize("stream", [False, True])
def test_draining_lets_answers_end(qwen: Tokenizer, stream: bool) -> None:
    engine = FakeEngine(qwen)
    engine.hold()
    with running(ServerConfig(port=0), lambda: engine) as server:
        got: list[str] = []

        def ask() -> None:
            with server.client() as api:
                got.append(api.post(CHAT, json={**ASK, "stream": stream}).text)

        asking = threading.Thread(target=ask)
        asking.start()
        engine.wait_until(lambda now: now.n_queued + now.n_active == 1)
        server.server.stop()
        wait_for(lambda: server.app.state.server.is_stopping)
        with pytest.raises(httpx.ConnectError), server.client() as api:
            api.get("/health")
        engine.allow()
        asking.join(TIMEOUT_S)
        server.stop()
    assert '"finish_reason":"stop"' in got[0]
    assert got[0].endswith("data: [DONE]\n\n") is stream


def test_draining_has_an_end(qwen: Tokenizer) -> None:
    engine = FakeEngine(qwen)
    engine.hold()
    with running(ServerConfig(port=0, limits=Limits(drain_s=0.1)), lambda: engine) as server:
        answers: dict[bool, Any] = {}

        def ask(stream: bool) -> None:
            with server.client() as api:
                answers[stream] = api.post(CHAT, json={**ASK, "stream": stream})

        asking = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
        for thread in asking:
            thread.start()
        engine.wait_until(lambda now: now.n_queued + now.n_active == 2)
        server.stop()
        for thread in asking:
            thread.join(TIMEOUT_S)
    assert (answers[False].status_code, answers[False].json()["error"]["code"]) == (503, "stopping")
    assert '"stopping"' in answers[True].text
    assert answers[True].text.endswith("data: [DONE]\n\n")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_need_nothing_from_elsewhere(api: httpx.Client, path: str) -> None:
    page = api.get(path)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    links = _Links()
    links.feed(page.text)
    assert links.links
    for link in links.links:
        assert link.startswith(("/", "#"))
        if link.startswith("/"):
            assert api.get(link).status_code == 200
    assert api.get("/page/../app.py").status_code == 404
    assert api.get("/page/nothing.js").status_code == 404


def test_docs_tell_every_endpoint_and_field(api: httpx.Client) -> None:
    page = api.get("/docs").text
    schema = api.get("/openapi.json").json()
    assert len(schema["paths"]) == 9
    for path in schema["paths"]:
        assert path in page
    for name in ("ChatRequest", "CompletionRequest"):
        for field in schema["components"]["schemas"][name]["properties"]:
            assert f"<code>{field}</code>" in page
    assert "ChatChunk" in schema["components"]["schemas"]
