"""/v1/completions: text continued, echoed and scored."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine

COMPLETIONS = "/v1/completions"


def ask(api: httpx.Client, prompt: Any = "Once upon", **fields: Any) -> Any:
    answer = api.post(COMPLETIONS, json={"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(api: httpx.Client, prompt: Any = "Once upon", **fields: Any) -> list[Any]:
    answer = api.post(COMPLETIONS, json={"prompt": prompt, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    blocks = answer.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def test_text_is_continued(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    got = ask(api, max_tokens=4)
    (choice,) = got["choices"]
    assert choice == {"index": 0, "text": "Sample 0 at", "logprobs": None, "finish_reason": "length"}
    assert got["object"] == "text_completion"
    (request,) = engine.seen
    assert request.prompt_tokens == tuple(qwen.tokenize("Once upon"))
    assert (request.continues_text, request.logprobs, request.prompt_logprobs) == (True, None, None)


def test_sixteen_tokens_by_default(api: httpx.Client, engine: FakeEngine) -> None:
    ask(api)
    assert engine.seen[0].max_tokens == 16


def test_special_tokens_in_text_are_parsed(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    ask(api, "<|im_start|>user\nHi")
    assert engine.seen[0].prompt_tokens == tuple(qwen.tokenize("<|im_start|>user\nHi", special=True))


def test_several_prompts_and_answers_in_order(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    engine.reply = lambda request, sample: f"{qwen.detokenize(request.prompt_tokens)}-{sample}"
    for prompts in (["one", "two"], [qwen.tokenize("one"), qwen.tokenize("two")]):
        texts = [choice["text"] for choice in ask(api, prompts, n=2)["choices"]]
        assert texts == ["one-0", "one-1", "two-0", "two-1"]
    got = ask(api, ["one", "two words"], n=2)
    assert got["usage"]["prompt_tokens"] == len(qwen.tokenize("one")) + len(qwen.tokenize("two words"))
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]


def test_the_prompt_is_scored(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    """As evaluation harnesses do it."""
    prompt = "naïve 🙂 café " * 20
    ids = qwen.tokenize(prompt)
    (choice,) = ask(api, prompt, echo=True, logprobs=1, max_tokens=1, temperature=0)["choices"]
    lists = choice["logprobs"]
    assert choice["text"] == prompt + "Sample"
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) == len(lists["top_logprobs"]) == len(ids) + 1
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    wanted = [engine.logprobs(token, index, 1).logprob for index, token in enumerate(ids)]
    assert lists["token_logprobs"][1:-1] == wanted[1:]
    for logprob, top in zip(lists["token_logprobs"][1:], lists["top_logprobs"][1:], strict=True):
        assert logprob == max(top.values())
    for token, start in zip(lists["tokens"], lists["text_offset"], strict=True):
        if "\ufffd" not in token:
            assert choice["text"][start : start + len(token)] == token


def test_the_prompt_alone(api: httpx.Client, qwen: Tokenizer) -> None:
    ids = qwen.tokenize("one two three")
    for prompt in ("one two three", ids):
        (choice,) = ask(api, prompt, echo=True, logprobs=0, max_tokens=0)["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("one two three", "length")
        assert choice["logprobs"]["tokens"] == ["one", " two", " three"]
        assert choice["logprobs"]["top_logprobs"] == [
            None,
            *({token: logprob} for token, logprob in zip(*_tail(choice["logprobs"]), strict=True)),
        ]
    (choice,) = ask(api, "one two three", echo=True, max_tokens=0)["choices"]
    assert (choice["text"], choice["logprobs"]) == ("one two three", None)


def _tail(lists: Any) -> tuple[list[str], list[float]]:
    return lists["tokens"][1:], lists["token_logprobs"][1:]


def test_logprobs_of_the_answer_alone(api: httpx.Client, qwen: Tokenizer) -> None:
    (choice,) = ask(api, logprobs=2, max_tokens=5)["choices"]
    lists = choice["logprobs"]
    assert "".join(lists["tokens"]) == choice["text"]
    assert lists["text_offset"][0] == 0
    assert all(len(top) == 2 for top in lists["top_logprobs"])


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_is_the_same_answer(api: httpx.Client, echo: bool, logprobs: int | None) -> None:
    fields = {"n": 2, "echo": echo, "logprobs": logprobs, "max_tokens": 30}
    whole = ask(api, **fields)["choices"]
    *parts, usage = chunks(api, **fields, stream_options={"include_usage": True})
    for index, choice in enumerate(whole):
        mine = [c for part in parts for c in part["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]
        if logprobs is not None:
            for name, values in choice["logprobs"].items():
                assert [v for c in mine if c["logprobs"] for v in c["logprobs"][name]] == values
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 20
    assert "timings" in parts[-1]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": ["a", ""]}, "invalid_value", "prompt.1"),
        ({"prompt": ["a", 1]}, "invalid_type", "prompt.1"),
        ({"prompt": [10**8]}, "invalid_value", "prompt"),
        ({"prompt": [[1], [-1]]}, "invalid_value", "prompt.1.0"),
        ({"prompt": ["a"] * 33}, "invalid_value", "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"prompt": "a", "best_of": 2}, "invalid_value", "best_of"),
        ({"prompt": "a", "suffix": "b"}, "unsupported", "suffix"),
        ({"prompt": "a", "logprobs": True}, "invalid_type", "logprobs"),
        ({"prompt": "a", "messages": []}, "unknown_parameter", "messages"),
        ({}, "missing_required_parameter", "prompt"),
    ],
)
def test_what_is_refused(api: httpx.Client, engine: FakeEngine, fields: Any, code: str, param: str) -> None:
    answer = api.post(COMPLETIONS, json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param), answer.text
    assert engine.seen == []


def test_overflow_names_the_prompt_or_max_tokens(api: httpx.Client, engine: FakeEngine) -> None:
    for fields, param in (
        ({"prompt": [1] * (engine.n_ctx + 1)}, "prompt"),
        ({"prompt": [1] * engine.n_ctx, "max_tokens": 1}, "max_tokens"),
    ):
        error = api.post(COMPLETIONS, json=fields).json()["error"]
        assert (error["code"], error["param"], error["n_ctx"]) == ("context_length_exceeded", param, engine.n_ctx)
    assert ask(api, [1] * (engine.n_ctx - 1), max_tokens=1)["usage"]["completion_tokens"] == 1
