"""What is refused, and how: OpenAI's shape, the field's name, nothing left out in silence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from minfer.sampling import SamplingParams
from minfer.serve import Limits, ServerConfig
from minfer.serve.engine_protocol import ServeRequest
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import Running, metric, running

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]


def refused(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    """Checks an error, and returns its message."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), answer.text
    kinds = {True: "server_error", False: "invalid_request_error"}
    assert error["type"] == kinds[status >= 500]
    message: str = error["message"]
    assert message
    return message


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"grammar": "root ::= x"}, "unknown_parameter", "grammar"),
        ({"functions": []}, "unsupported", "functions"),
        ({"stream_options": {"x": 1}, "stream": True}, "unknown_parameter", "stream_options.x"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "unknown_parameter", "messages.0.mood"),
        ({"response_format": {"type": "json_object"}}, "invalid_value", "response_format.type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"store": 0}, "invalid_type", "store"),
        ({"temperature": "0.5"}, "invalid_type", "temperature"),
        ({"temperature": True}, "invalid_type", "temperature"),
        ({"temperature": -0.1}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"top_k": 1.5}, "invalid_type", "top_k"),
        ({"seed": 2**64}, "invalid_value", "seed"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 17}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_value", "max_completion_tokens"),
        ({"stop": ""}, "invalid_value", "stop"),
        ({"stop": ["a", 1]}, "invalid_type", "stop.1"),
        ({"stop": ["a"] * 17}, "invalid_value", "stop"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"999999999": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": True}}, "invalid_value", "logit_bias.5"),
        ({"logit_bias": {"5": 1e9}}, "invalid_value", "logit_bias.5"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"return_progress": True}, "invalid_value", "return_progress"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": "Hello"}, "invalid_type", "messages"),
        ({"messages": None}, "invalid_type", "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages.0.role"),
        ({"messages": [{"role": 5, "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages.0.content"),
        ({"messages": [{"role": "assistant"}]}, "missing_required_parameter", "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "invalid_value",
            "messages.0.content.0.type",
        ),
        ({"tools": [{"type": "function", "function": {}}]}, "missing_required_parameter", "tools.0.function.name"),
    ],
)
def test_a_field_is_refused_by_name(
    api: httpx.Client, engine: FakeEngine, fields: dict[str, Any], code: str, param: str
) -> None:
    message = refused(api.post(CHAT, json={"messages": HELLO, **fields}), 400, code, param)
    assert param in message
    assert engine.seen == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "0.5"}, 'temperature: "0.5" (a string); it must be a number'),
        ({"temperature": -0.1}, "temperature: -0.1; it must be at least 0"),
        ({"temperature": 1000}, "temperature: 1000; it must be at most 100"),
        ({"top_k": 1.5}, "top_k: 1.5; it must be an integer"),
        ({"top_p": 0}, "top_p: 0; it must be above 0"),
        ({"stream": 1}, "stream: 1; it must be true or false"),
        ({"stop": ""}, "stop: an empty string; it must be at least 1 character long"),
        ({"stop": 5}, "stop: 5; it must be a string or a list"),
        ({"logit_bias": 5}, "logit_bias: 5; it must be an object or a list"),
        ({"messages": []}, "messages: an empty list; it must be of at least 1 entry"),
        ({"messages": None}, "messages: null; it must be a list"),
        ({"messages": ["Hi"]}, 'messages.0: "Hi" (a string); it must be an object'),
        ({"messages": [{"content": "Hi"}]}, "messages.0.role: missing; a value is required"),
        (
            {"messages": [{"role": "bot", "content": "Hi"}]},
            "messages.0.role: \"bot\" (a string); it must be one of 'system', 'developer', 'user', 'assistant', 'tool'",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0.content: missing; a value is required"),
        (
            {"messages": [{"role": "user", "content": None}]},
            "messages.0.content: null; it must be a string or a list",
        ),
        (
            {"messages": [{"role": "user", "content": []}]},
            "messages.0.content: an empty list; it must be of at least 1 entry",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type: \"image_url\" (a string); it must be 'text'",
        ),
        ({"tool_choice": "required"}, "tool_choice: \"required\" (a string); it must be 'auto' or 'none'"),
        ({"n": 10**30}, f"n: {10**30}; it must be at most 128"),
        ({"user": "x" * 2000}, "user: a string of 2000 characters; it must be at most 1024 characters long"),
        ({"metadata": {"a": 1}}, "metadata.a: 1; it must be a string"),
    ],
)
def test_a_message_names_the_field_the_value_and_what_is_accepted(
    api: httpx.Client, fields: dict[str, Any], message: str
) -> None:
    answer = api.post(CHAT, json={"messages": HELLO, **fields})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, message)


_JARGON = re.compile(r"validation|discriminator|tag\b|hex escape|pydantic|valid dictionary|Input", re.IGNORECASE)


def test_no_message_is_pydantic_s(api: httpx.Client) -> None:
    """Values of every kind in place of every field."""
    values = [None, True, 0, -5, 1.5, 10**40, "", "x", [], [None], [[]], {}, {"x": 1}, {"type": "x"}, {"role": "x"}]
    schema = api.get("/openapi.json").json()["components"]["schemas"]["ChatRequest"]["properties"]
    for name, value in itertools.product(schema, values):
        answer = api.post(CHAT, json={"messages": HELLO, "max_tokens": 1, "stream": False, name: value})
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert answer.status_code == (404 if name == "model" and isinstance(value, str) else 400), (name, value)
            assert name in error["message"], (name, value, error)
            assert not _JARGON.search(error["message"]), (name, value, error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"messages": [{"role": "user", "content": "\\ud83d!"}]}', r"\\ud83d at character 43 is half of a character"),
        (b'["\\ud83d\\ude00 \\\\ud83d \\ude00"]', r"\\ude00 at character 23 is half of a character"),
        (b'["\\ud83d"]', r"\\ud83d at character 2 is half of a character"),
        (b'["\xff"]', "byte 2, 0xff, is not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a": 1', "EOF while parsing an object at line 1 column 7"),
    ],
)
def test_why_a_body_can_t_be_read(api: httpx.Client, body: bytes, words: str) -> None:
    answer = api.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert re.search(words, refused(answer, 400, "invalid_json"))


def test_a_prompt_longer_than_the_context(api: httpx.Client, engine: FakeEngine) -> None:
    """In OpenAI's words, by which other programs know it."""
    long = [{"role": "user", "content": "word " * 5000}]
    for fields, param in (({"messages": long}, "messages"), ({"messages": HELLO, "max_tokens": 5000}, "max_tokens")):
        message = refused(api.post(CHAT, json=fields), 400, "context_length_exceeded", param)
        assert message.startswith("This model's maximum context length is 4096 tokens. However, you")
    message = refused(
        api.post("/v1/completions", json={"prompt": "word " * 5000}), 400, "context_length_exceeded", "prompt"
    )
    assert message.startswith("This model's maximum context length is 4096 tokens. However, you requested 50")


def test_arguments_of_an_earlier_call_must_be_an_object(api: httpx.Client) -> None:
    for arguments in ("[1]", "{", "[" * 100_000):
        call = {"id": "c1", "function": {"name": "f", "arguments": arguments}}
        messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
        param = "messages.1.tool_calls.0.function.arguments"
        refused(api.post(CHAT, json={"messages": messages}), 400, "invalid_value", param)


def test_another_model(api: httpx.Client, engine: FakeEngine) -> None:
    answer = api.post(CHAT, json={"messages": HELLO, "model": "gpt-4"})
    assert "fake, alias" in refused(answer, 404, "model_not_found", "model")
    assert api.post(CHAT, json={"messages": HELLO, "model": "alias"}).json()["model"] == "fake"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": NaN}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
        "{}".encode("utf-16"),
    ],
)
def test_what_is_no_json(api: httpx.Client, body: bytes) -> None:
    answer = api.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"'])
def test_json_that_is_no_object(api: httpx.Client, body: bytes) -> None:
    answer = api.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_type", "invalid_value", "missing_required_parameter")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        {},
    ],
)
def test_other_content_types(api: httpx.Client, engine: FakeEngine, headers: dict[str, str]) -> None:
    refused(api.post(CHAT, content=b'{"messages": []}', headers=headers), 415, "unsupported_media_type")
    assert engine.seen == []


def test_a_body_that_is_too_large(api: httpx.Client) -> None:
    body = b'{"messages": [{"role": "user", "content": "' + b"x" * 300_000 + b'"}]}'
    headers = {"Content-Type": "application/json"}
    refused(api.post(CHAT, content=body, headers=headers), 413, "request_too_large")
    refused(api.post(CHAT, content=iter([body]), headers=headers), 413, "request_too_large")


def test_unknown_paths_and_methods(api: httpx.Client) -> None:
    refused(api.get("/v1/nothing"), 404, "not_found")
    refused(api.get(CHAT), 405, "method_not_allowed")
    assert metric(api.get("/metrics").text, "minfer_requests_total", endpoint="other", outcome="invalid") >= 1


def test_a_queue_that_is_full(qwen: Tokenizer) -> None:
    engine = FakeEngine(qwen, max_active=1, max_queued=2)
    engine.hold()
    with running(ServerConfig(port=0), lambda: engine) as server, server.client() as api:
        waiting = [engine.submit(_request(qwen), lambda event: None) for _ in range(2)]
        answer = api.post(CHAT, json={"messages": HELLO})
        refused(answer, 503, "queue_full")
        assert answer.headers["retry-after"] == "2"
        text = api.get("/metrics").text
        assert metric(text, "minfer_requests_total", endpoint=CHAT, outcome="overloaded") == 1
        assert (metric(text, "minfer_queue_depth"), metric(text, "minfer_queue_capacity")) == (2, 2)
        for handle in waiting:
            handle.cancel()
        engine.allow()
        assert api.post(CHAT, json={"messages": HELLO}).status_code == 200


def test_some_prompts_of_a_request_don_t_fit_into_the_queue(qwen: Tokenizer) -> None:
    engine = FakeEngine(qwen, max_active=1, max_queued=3)
    engine.hold()
    with running(ServerConfig(port=0), lambda: engine) as server, server.client() as api:
        handle = engine.submit(_request(qwen), lambda event: None)
        answer = api.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
        refused(answer, 503, "queue_full")
        engine.wait_until(lambda now: now.n_queued == 1)  # those that had fitted are taken back
        handle.cancel()
        refused(api.post("/v1/completions", json={"prompt": ["a"] * 4}), 400, "invalid_value", "prompt")


def _request(tokenizer: Tokenizer) -> Any:
    return ServeRequest(prompt_tokens=(1,), sampling=SamplingParams(), max_tokens=1)


@pytest.fixture
def fragile(qwen: Tokenizer) -> Iterator[tuple[Running, FakeEngine]]:
    """A server whose engine may break."""
    engine = FakeEngine(qwen)
    engine.hold()
    with running(ServerConfig(port=0, limits=Limits(keep_alive_s=0.05)), lambda: engine) as server:
        yield server, engine


def test_an_engine_that_breaks(fragile: tuple[Running, FakeEngine]) -> None:
    server, engine = fragile
    with server.client() as api, api.stream("POST", CHAT, json={"messages": HELLO, "stream": True}) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        assert next(lines) == ": still here"  # nothing came for a while
        engine.crash(RuntimeError("secret detail"))
        told = [line for line in lines if line.startswith("data: ")]
    assert '"internal_error"' in told[0]
    assert "secret" not in told[0]
    assert told[1] == "data: [DONE]"
    with server.client() as api:
        refused(api.post(CHAT, json={"messages": HELLO}), 500, "engine_error")
        health = api.get("/health")
        assert (health.status_code, health.json()) == (500, {"status": "failed"})
        assert metric(api.get("/metrics").text, "minfer_requests_total", endpoint=CHAT, outcome="error") == 2


def test_an_error_of_our_own_is_told_without_detail(api: httpx.Client, engine: FakeEngine) -> None:
    class BrokenError(Exception):
        pass

    def submit(request: object, on_event: object) -> None:
        raise BrokenError("secret detail")

    engine.submit = submit  # type: ignore[method-assign,assignment]
    try:
        message = refused(api.post(CHAT, json={"messages": HELLO}), 500, "internal_error")
    finally:
        del engine.submit  # type: ignore[method-assign]
    assert "secret" not in message
