"""The official client, as its users use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from minfer.serve import ServerConfig
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running, running

HELLO: Any = [{"role": "user", "content": "Hello!"}]
TEXT = "Sample 0 at temperature 0.8: alpha beta gamma, naïve 🙂 end."
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(model="fake", messages=HELLO, temperature=0.8, user="me")
    assert got.choices[0].message.content == TEXT
    assert got.choices[0].finish_reason == "stop"
    assert got.usage is not None
    assert got.usage.prompt_tokens_details is not None


def test_streaming_with_usage(client: openai.OpenAI) -> None:
    text, usage = "", None
    for chunk in client.chat.completions.create(
        model="fake", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == TEXT
    assert usage is not None
    assert usage.completion_tokens > 10


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=HELLO, logprobs=True) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == final.choices[0].message.content == TEXT


def test_many_at_once(server: Running) -> None:
    async def work() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            asked = [client.chat.completions.create(model="fake", messages=HELLO, n=2) for _ in range(12)]
            return [choice.message.content for got in await asyncio.gather(*asked) for choice in got.choices]

    assert asyncio.run(work()) == [TEXT, TEXT.replace("Sample 0", "Sample 1")] * 12


def test_async_streaming(server: Running) -> None:
    async def one(client: openai.AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="fake", messages=HELLO, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def work() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            return await asyncio.gather(*(one(client) for _ in range(12)))

    assert asyncio.run(work()) == [TEXT] * 12


def test_logprobs(client: openai.OpenAI) -> None:
    got = client.chat.completions.create(model="fake", messages=HELLO, logprobs=True, top_logprobs=4)
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(entry.bytes or ()) for entry in logprobs.content).decode() == TEXT
    assert all(len(entry.top_logprobs) == 4 for entry in logprobs.content)


def test_completions(client: openai.OpenAI) -> None:
    got = client.completions.create(model="fake", prompt="One two", echo=True, logprobs=2, max_tokens=3)
    assert got.choices[0].text == "One twoSample 0"
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 5
    streamed = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=50, stream=True)
    texts = ["", ""]
    for chunk in streamed:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [TEXT, TEXT]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake", "alias"]


def test_a_tool_and_its_answer(client: openai.OpenAI, engine: FakeEngine, qwen: Tokenizer) -> None:
    engine.reply = lambda request, sample: (
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    )
    got = client.chat.completions.create(model="fake", messages=HELLO, tools=[ADD])
    choice = got.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
    assert '"name": "add"' in qwen.detokenize(engine.seen[0].prompt_tokens)
    engine.reply = lambda request, sample: "It is 3."
    messages = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    got = client.chat.completions.create(model="fake", messages=messages, tools=[ADD])
    assert got.choices[0].message.content == "It is 3."
    prompt = qwen.detokenize(engine.seen[1].prompt_tokens)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>' in prompt
    assert "<tool_response>\n3\n</tool_response>" in prompt


def test_tools_in_a_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    one = '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call>\n'
    engine.reply = lambda request, sample: "Two:\n" + one % 1 + one % 2
    with client.chat.completions.stream(model="fake", messages=HELLO, tools=[ADD]) as stream:
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "Two:"
    assert [call.function.arguments for call in message.tool_calls or ()] == ['{"a": 1}', '{"a": 2}']
    assert final.choices[0].finish_reason == "tool_calls"


def test_typed_errors(client: openai.OpenAI, qwen: Tokenizer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=HELLO, max_tokens=100_000)
    assert bad.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="fake", messages=HELLO, extra_body={"grammar": "x"})
    assert bad.value.param == "grammar"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=HELLO)
    config = ServerConfig(port=0, api_keys=("right",))
    with running(config, lambda: FakeEngine(qwen)) as guarded:
        with (
            openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.models.list()
        with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="right") as right:
            assert right.models.list().data[0].id == "fake"


def test_an_error_in_a_stream(qwen: Tokenizer) -> None:
    engine = FakeEngine(qwen)
    with (
        running(ServerConfig(port=0), lambda: engine) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        engine.hold()
        stream = client.chat.completions.create(model="fake", messages=HELLO, stream=True)
        engine.crash(RuntimeError("broken"))
        with pytest.raises(openai.APIError, match="internal error"):
            list(stream)
