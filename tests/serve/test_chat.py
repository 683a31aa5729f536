"""/v1/chat/completions: answers whole and in pieces, and what is asked of the engine."""

from __future__ import annotations

import json
from typing import Any

import httpx

from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
TEXT = "Sample 0 at temperature 0.8: alpha beta gamma, naïve 🙂 end."


def ask(api: httpx.Client, **fields: Any) -> Any:
    answer = api.post(CHAT, json={"messages": HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(api: httpx.Client, **fields: Any) -> list[Any]:
    """The events of a stream, without its end, which must be there."""
    answer = api.post(CHAT, json={"messages": HELLO, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_an_answer(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    got = ask(api, model="fake")
    (choice,) = got["choices"]
    assert choice == {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    assert (got["object"], got["model"]) == ("chat.completion", "fake")
    (request,) = engine.seen
    assert request.prompt_tokens == tuple(qwen.encode_chat(HELLO))
    assert request.max_tokens == engine.n_ctx - len(request.prompt_tokens)
    assert not request.continues_text
    n_generated = len(qwen.tokenize(TEXT))
    assert got["usage"]["completion_tokens"] == n_generated
    assert got["usage"]["prompt_tokens"] == len(request.prompt_tokens)
    assert got["usage"]["total_tokens"] == len(request.prompt_tokens) + n_generated


def test_a_stream_is_the_same_answer(api: httpx.Client, engine: FakeEngine) -> None:
    chunks = events(api, stream_options={"include_usage": True})
    *parts, last, usage = chunks
    assert len(parts) > 5
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in part["choices"][0]["delta"] for part in parts[1:])
    assert all(part["choices"][0]["finish_reason"] is None for part in parts)
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == TEXT
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert usage["choices"] == []
    assert usage["usage"] == ask(api, cache_prompt=False)["usage"]
    assert len({chunk["id"] for chunk in chunks}) == 1
