"""The official client on real models: what the server says is what the engine says, alone or in company."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

import minfer
from minfer.serve import ServerConfig
from real_models import default_model, large_model
from serve_running import TIMEOUT_S, Running, metric, running

pytestmark = pytest.mark.default_model
QUESTION: Any = [{"role": "user", "content": "What is 2+2?"}]
GREEDY: Any = {"model": "default", "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def model() -> Iterator[minfer.Model]:
    with minfer.load(default_model(), n_ctx=1024) as model:
        yield model


@pytest.fixture(scope="module")
def served(model: minfer.Model) -> Iterator[Running]:
    config = ServerConfig(port=0, model_aliases=("default",))
    with running(config, lambda: model.batch_engine("smol", max_active=4, max_queued=64)) as server:
        yield server
        with server.client() as api:
            text = api.get("/metrics").text
            assert metric(text, "minfer_kv_pages", state="used") == 0
            assert metric(text, "minfer_active_requests") == metric(text, "minfer_queue_depth") == 0


@pytest.fixture
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def test_the_answer_is_the_engine_s(client: openai.OpenAI, model: minfer.Model) -> None:
    want = model.generate(QUESTION, temperature=0, max_tokens=24)
    got = client.chat.completions.create(messages=QUESTION, **GREEDY)
    assert got.choices[0].message.content == want.text
    assert got.usage is not None
    assert got.usage.completion_tokens == len(want.tokens)
    stream = client.chat.completions.create(messages=QUESTION, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == want.text
    again = client.chat.completions.create(messages=QUESTION, **GREEDY)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1


def test_company_changes_no_answer(served: Running, client: openai.OpenAI) -> None:
    """Six requests at once, more than are computed together: each is answered as if it were alone."""
    asked: list[Any] = [
        {"messages": [{"role": "user", "content": f"Tell me about the number {i}."}], "seed": i, "logprobs": True}
        for i in range(6)
    ]
    options = {"model": "smol", "max_tokens": 8}

    async def together() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as many:
            return await asyncio.gather(*(many.chat.completions.create(**each, **options) for each in asked))

    for each, got in zip(asked, asyncio.run(together()), strict=True):
        alone = client.chat.completions.create(**each, **options)
        assert got.choices[0] == alone.choices[0]


def test_samples_are_those_of_their_seeds(client: openai.OpenAI) -> None:
    options: Any = {"model": "smol", "messages": QUESTION, "max_tokens": 12, "temperature": 1.5}
    both = client.chat.completions.create(n=2, seed=5, **options)
    for i, choice in enumerate(both.choices):
        alone = client.chat.completions.create(seed=5 + i, **options)
        assert choice.message.content == alone.choices[0].message.content
    assert both.choices[0].message.content != both.choices[1].message.content


def test_scores_are_those_of_the_logits(client: openai.OpenAI, model: minfer.Model) -> None:
    text = "The capital of France is Paris, and that of Italy is Rome."
    ids = model.tokenize(text)
    logits = model.logits(ids, all=True).astype(float)
    got = client.completions.create(model="smol", prompt=text, echo=True, logprobs=1, max_tokens=1, temperature=0)
    lists: Any = got.choices[0].logprobs
    assert got.choices[0].text.startswith(text)
    for place, token in enumerate(ids[1:]):
        row = logits[place]
        want = row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert lists.token_logprobs[place + 1] == pytest.approx(want, abs=1e-6)
        is_likeliest = lists.token_logprobs[place + 1] == max(lists.top_logprobs[place + 1].values())
        assert is_likeliest == (row[token] == row.max())
    by_ids = client.completions.create(model="smol", prompt=ids, echo=True, logprobs=1, max_tokens=0, n=2)
    assert len(by_ids.choices) == 2
    for choice in by_ids.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == lists.token_logprobs[:-1]


def test_refusals(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="smol", messages=QUESTION, max_tokens=5000)
    assert error.value.code == "context_length_exceeded"
    tool: Any = {"type": "function", "function": {"name": "add"}}
    with pytest.raises(openai.BadRequestError, match="no place") as error:
        client.chat.completions.create(model="smol", messages=QUESTION, tools=[tool])
    assert error.value.param == "tools"


def test_clients_that_vanish_leave_nothing(served: Running) -> None:
    body = b'{"messages": [{"role": "user", "content": "Count to a thousand."}], "stream": true, "ignore_eos": true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    clients = [socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S) for _ in range(20)]
    for client in clients:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert clients[0].recv(1000).startswith(b"HTTP/1.1 200 ")
    for client in clients:
        client.close()
    with served.client() as api:
        for _ in range(1000):
            text = api.get("/metrics").text
            if metric(text, "minfer_active_requests") == metric(text, "minfer_queue_depth") == 0:
                break
        assert metric(text, "minfer_kv_pages", state="used") == 0
        assert metric(text, "minfer_active_requests") == 0


@pytest.mark.large_model
def test_a_model_calls_a_tool_and_tells_its_answer() -> None:
    """The loop of tools, on a model that was trained for it."""
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    options: Any = {"model": "qwen", "tools": [tool], "temperature": 0, "max_tokens": 60}
    with (
        minfer.load(large_model(), n_ctx=1024) as model,
        running(ServerConfig(port=0), lambda: model.batch_engine("qwen")) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        first = client.chat.completions.create(messages=messages, **options).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.tool_calls
        call: Any = first.message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "It is snowing."}]
        second = client.chat.completions.create(messages=messages, **options | {"tool_choice": "none"}).choices[0]
    assert "snow" in (second.message.content or "")
