"""What clients send unasked, and send back: it is taken where it changes nothing."""

from __future__ import annotations

import typing
from typing import Any

import httpx
import openai
import pytest
from openai.types import completion_create_params
from openai.types.chat import ChatCompletion
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.chat.parsed_chat_completion import ParsedChatCompletion

from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "Hello!"}]
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def chat(api: httpx.Client, **fields: Any) -> httpx.Response:
    return api.post(CHAT, json={"messages": HELLO, **fields})


def seen_prompt(engine: FakeEngine, tokenizer: Tokenizer) -> str:
    """The last prompt that the engine got."""
    return tokenizer.detokenize(engine.seen[-1].prompt_tokens)


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_dumped_by_the_official_client_is_history(
    server: Running, engine: FakeEngine, qwen: Tokenizer, streams: bool
) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        engine.reply = lambda request, sample: f"Let me see.\n{CALL}"
        got: ChatCompletion | ParsedChatCompletion[None]
        if streams:
            with client.chat.completions.stream(model="fake", messages=HELLO, tools=[ADD]) as stream:
                got = stream.get_final_completion()
        else:
            got = client.chat.completions.create(model="fake", messages=HELLO, tools=[ADD])
        message = got.choices[0].message
        assert message.tool_calls
        history = [
            *HELLO,
            message.model_dump(),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "2"},
        ]
        engine.reply = lambda request, sample: "Two."
        got = client.chat.completions.create(model="fake", messages=history, tools=[ADD])
        assert f"Let me see.\n{CALL}" in seen_prompt(engine, qwen)
        again: Any = [*HELLO, got.choices[0].message.model_dump(), *HELLO]
        client.chat.completions.create(model="fake", messages=again)
        assert "assistant\nTwo.<|im_end|>" in seen_prompt(engine, qwen)


@pytest.mark.parametrize(
    "extra",
    [
        {"annotations": [], "audio": None, "function_call": None, "refusal": None, "parsed": None},
        {"refusal": "", "tool_calls": [], "name": None, "reasoning_content": None},
        {"annotations": None, "parsed": {"a": 1}},
    ],
)
def test_fields_of_an_answer_that_say_nothing(
    api: httpx.Client, engine: FakeEngine, qwen: Tokenizer, extra: dict[str, Any]
) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Hi."}, *HELLO]
    assert chat(api, messages=messages).status_code == 200
    plain = seen_prompt(engine, qwen)
    messages[1] = {**messages[1], **extra}
    answer = chat(api, messages=messages)
    assert answer.status_code == 200, answer.text
    assert seen_prompt(engine, qwen) == plain


@pytest.mark.parametrize("arguments", ["", " \n", "null", None, "{}"])
@pytest.mark.parametrize("content", [None, "", []])
def test_a_call_without_arguments(
    api: httpx.Client, engine: FakeEngine, qwen: Tokenizer, arguments: str | None, content: Any
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments}}
    messages = [*HELLO, {"role": "assistant", "content": content, "tool_calls": [call]}]
    answer = chat(api, messages=[*messages, {"role": "tool", "tool_call_id": "c1", "content": "12:00"}])
    assert answer.status_code == 200, answer.text
    assert '{"name": "now", "arguments": {}}' in seen_prompt(engine, qwen)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_cache_key": "a", "safety_identifier": "b", "user": "c", "prompt_cache_retention": "24h"},
        {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "verbosity": "low"},
        {"top_logprobs": 0, "logprobs": False},
        {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": None}},
        {"prompt_cache_options": {"mode": "implicit"}},
    ],
)
def test_labels_that_change_nothing(api: httpx.Client, engine: FakeEngine, fields: dict[str, Any]) -> None:
    assert chat(api, seed=1).status_code == 200
    answer = chat(api, seed=1, **fields)
    assert answer.status_code == 200, answer.text
    assert engine.seen[0] == engine.seen[1]


def test_hints_on_parts(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    part = {"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": None}
    assert chat(api, messages=[{"role": "user", "content": [part]}]).status_code == 200
    assert "Hello!" in seen_prompt(engine, qwen)
    assert "ephemeral" not in seen_prompt(engine, qwen)


def names_of(kind: Any) -> list[str]:
    return sorted(set(typing.get_type_hints(kind)) - {"messages", "prompt"})


@pytest.mark.parametrize("name", names_of(chat_create_params.CompletionCreateParamsStreaming))
def test_null_is_taken_for_every_field_of_the_official_client(api: httpx.Client, engine: FakeEngine, name: str) -> None:
    answer = chat(api, **{name: None})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", names_of(completion_create_params.CompletionCreateParamsStreaming))
def test_null_is_taken_in_completions_too(api: httpx.Client, engine: FakeEngine, name: str) -> None:
    answer = api.post("/v1/completions", json={"prompt": "One", name: None})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("reasoning_effort", "low"),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("audio", {"voice": "alloy"}),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    api: httpx.Client, engine: FakeEngine, name: str, value: object
) -> None:
    answer = chat(api, **{name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, name, "unsupported")
    assert name in error["message"]
    assert "not supported" in error["message"]
    assert engine.seen == []


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HELLO}), ("/v1/completions", {"prompt": "One"})])
def test_unlimited(api: httpx.Client, engine: FakeEngine, path: str, prompt: Any) -> None:
    answer = api.post(path, json={**prompt, "max_tokens": -1, "top_k": -1})
    assert answer.status_code == 200, answer.text
    request = engine.seen[0]
    assert request.max_tokens == engine.n_ctx - len(request.prompt_tokens)
    assert request.sampling.top_k == 0
    assert api.post(path, json={**prompt, "max_tokens": -2}).status_code == 400


@pytest.mark.parametrize(
    ("theirs", "ours"), [("repeat_penalty", "repetition_penalty"), ("repeat_last_n", "penalty_window")]
)
def test_both_names_of_the_penalties(api: httpx.Client, engine: FakeEngine, theirs: str, ours: str) -> None:
    for name in (theirs, ours):
        assert chat(api, **{name: 3}).status_code == 200
        assert getattr(engine.seen[-1].sampling, ours) == 3
    assert chat(api, **{theirs: 3, ours: 3}).status_code == 200
    error = chat(api, **{theirs: 3, ours: 2}).json()["error"]
    assert error["param"] == ours
    assert theirs in error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "suggestion"),
    [
        (CHAT, {"temprature": 1}, "temperature"),
        (CHAT, {"max_new_tokens": 5}, "max_tokens"),
        (CHAT, {"n_predict": 5}, "max_tokens"),
        (CHAT, {"stream": True, "stream_options": {"include_usge": True}}, "include_usage"),
        (CHAT, {"messages": [{"role": "user", "contents": "x"}]}, "content"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]}, "parameters"),
        ("/tokenize", {"content": "x", "add_specials": True}, "add_special"),
    ],
)
def test_did_you_mean(api: httpx.Client, path: str, fields: dict[str, Any], suggestion: str) -> None:
    body = fields if path != CHAT else {"messages": HELLO, **fields}
    error = api.post(path, json=body).json()["error"]
    assert error["code"] == "unknown_parameter"
    assert f"did you mean {suggestion!r}?" in error["message"]


def test_a_name_like_no_other_gets_no_suggestion(api: httpx.Client) -> None:
    assert "did you mean" not in chat(api, zzzz=1).json()["error"]["message"]
