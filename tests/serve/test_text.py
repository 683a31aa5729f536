"""/tokenize, /detokenize and /apply-template."""

from __future__ import annotations

import httpx

from minfer.text import Tokenizer


def test_there_and_back(api: httpx.Client, qwen: Tokenizer) -> None:
    text = "naïve 🙂 <|im_end|>"
    ids = api.post("/tokenize", json={"content": text}).json()["tokens"]
    assert ids == qwen.tokenize(text, special=True)
    assert api.post("/detokenize", json={"tokens": ids}).json() == {"content": text}
    plain = api.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert plain == qwen.tokenize(text) != ids
    assert api.post("/tokenize", json={"content": ""}).json() == {"tokens": []}


def test_pieces_are_text_or_bytes(api: httpx.Client, qwen: Tokenizer) -> None:
    pieces = api.post("/tokenize", json={"content": "a 🧿", "with_pieces": True}).json()["tokens"]
    data = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert data.decode() == "a 🧿"
    assert any(isinstance(p["piece"], list) for p in pieces)


def test_an_id_that_is_none(api: httpx.Client) -> None:
    answer = api.post("/detokenize", json={"tokens": [1, 10**8]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


def test_the_template(api: httpx.Client, qwen: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "add_generation_prompt": False}
    assert api.post("/apply-template", json=body).json() == {
        "prompt": qwen.apply_template(messages, add_generation_prompt=False)
    }
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    prompt = api.post("/apply-template", json={"messages": messages, "tools": tools}).json()["prompt"]
    assert '"name": "add"' in prompt
    assert prompt.endswith("assistant\n")
