"""/v1/chat/completions: answers whole and in pieces, and what is asked of the engine."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import httpx
import pytest

from minfer.sampling import SamplingParams
from minfer.sampling.names import ALIASES
from minfer.serve.schema_sampling import SamplingFields
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


def test_every_parameter_reaches_the_engine(api: httpx.Client, engine: FakeEngine) -> None:
    sampling = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.125,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "seed": 11,
        "dynatemp_range": 0.25,
        "dynatemp_exponent": 2.0,
        "typical_p": 0.5,
        "top_n_sigma": 2.0,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "min_keep": 2,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 100,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.25,
    }
    ask(
        api,
        **sampling,
        dry_sequence_breakers=["x"],
        repeat_penalty=1.5,
        repeat_last_n=32,
        logit_bias={"5": -100, "6": False, "7": 0},
        stop=["x", "y"],
        max_tokens=9,
        n=2,
        ignore_eos=True,
        cache_prompt=False,
        logprobs=True,
        top_logprobs=3,
    )
    (request,) = engine.seen
    assert {name: getattr(request.sampling, name) for name in sampling} == sampling
    assert (request.sampling.repetition_penalty, request.sampling.penalty_window) == (1.5, 32)
    assert request.sampling.dry_sequence_breakers == ("x",)
    assert request.sampling.logit_bias == {5: -100.0, 6: -math.inf, 7: 0.0}
    assert (request.stop, request.max_tokens, request.n_samples) == (("x", "y"), 9, 2)
    assert (request.ignore_eos, request.reuse_prefix, request.logprobs) == (True, False, 3)


def test_no_parameter_of_the_sampler_is_missing() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(SamplingFields.model_fields) == fields | set(ALIASES)


def test_the_order_of_the_stages(api: httpx.Client, engine: FakeEngine) -> None:
    ask(api, samplers=["top_k", "typ_p", "temperature"], top_p=1, min_p=0)
    assert engine.seen[0].sampling.samplers == ("top_k", "typical_p", "temperature")
    answer = api.post(CHAT, json={"messages": HELLO, "samplers": ["top_q"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "samplers")
    answer = api.post(CHAT, json={"messages": HELLO, "mirostat": 2, "top_k": 5})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_k")


def test_logit_bias_as_pairs_and_a_random_seed(api: httpx.Client, engine: FakeEngine) -> None:
    ask(api, logit_bias=[[5, 1.5], [6, False]], seed=-1)
    assert engine.seen[0].sampling.logit_bias == {5: 1.5, 6: -math.inf}
    assert engine.seen[0].sampling.seed is None


def test_max_completion_tokens_is_max_tokens(api: httpx.Client) -> None:
    got = ask(api, max_completion_tokens=3)
    assert got["choices"][0]["finish_reason"] == "length"
    assert got["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stop", [" beta", ["nothing", " beta"]])
def test_stop(api: httpx.Client, stop: Any) -> None:
    choice = ask(api, stop=stop)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Sample 0 at temperature 0.8: alpha", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers(api: httpx.Client, stream: bool) -> None:
    if stream:
        texts = ["", "", ""]
        for chunk in events(api, n=3):
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
    else:
        texts = [choice["message"]["content"] for choice in ask(api, n=3)["choices"]]
    assert texts == [TEXT.replace("Sample 0", f"Sample {i}") for i in range(3)]


def test_usage_counts_the_prompt_once_and_every_answer(api: httpx.Client, engine: FakeEngine) -> None:
    one, three = ask(api)["usage"], ask(api, n=3)["usage"]
    assert three["prompt_tokens"] == one["prompt_tokens"]
    assert three["completion_tokens"] == 3 * one["completion_tokens"]


def test_the_cache_shows(api: httpx.Client) -> None:
    first, second = ask(api), ask(api)
    n_prompt = first["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (first["timings"]["cache_n"], first["timings"]["prompt_n"]) == (0, n_prompt)
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": n_prompt - 1}
    assert (second["timings"]["cache_n"], second["timings"]["prompt_n"]) == (n_prompt - 1, 1)
    assert second["timings"]["predicted_n"] == second["usage"]["completion_tokens"]
    assert second["timings"]["predicted_ms"] > 0


def test_logprobs(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    entries = ask(api, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == TEXT
    ids = qwen.tokenize(TEXT)
    assert [entry["token"] for entry in entries] == [qwen.token_bytes(i).decode("utf-8", "replace") for i in ids]
    for index, (entry, token) in enumerate(zip(entries, ids, strict=True)):
        want = engine.logprobs(token, index, 2)
        assert entry["logprob"] == want.logprob
        assert [top["logprob"] for top in entry["top_logprobs"]] == [logprob for _, logprob in want.top]
        assert [bytes(top["bytes"]) for top in entry["top_logprobs"]] == [qwen.token_bytes(i) for i, _ in want.top]


def test_logprobs_of_a_stream_are_the_same(api: httpx.Client) -> None:
    whole = ask(api, logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]["content"]
    parts = [
        entry
        for chunk in events(api, logprobs=True, top_logprobs=1)
        for choice in chunk["choices"]
        for entry in choice.get("logprobs", {"content": []})["content"]
    ]
    assert parts == whole
    bare = ask(api, logprobs=True)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in bare] == [[]] * len(whole)


def test_progress_of_a_long_prompt(api: httpx.Client) -> None:
    messages = [{"role": "user", "content": "word " * 200}]
    chunks = events(api, messages=messages, return_progress=True, max_tokens=1)
    reports = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    n_total = reports[-1]["total"]
    assert [report["processed"] for report in reports] == [*range(64, n_total, 64), n_total]
    assert not any("prompt_progress" in chunk for chunk in events(api, messages=messages, max_tokens=1))


def test_all_roles_and_text_parts(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": [1, 2]}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "Add.", "name": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is 3."},
        {"role": "user", "content": "Again."},
    ]
    ask(api, messages=messages)
    text = qwen.detokenize(engine.seen[0].prompt_tokens)
    assert "<|im_start|>system\nBe\nbrief.<|im_end|>" in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": [1, 2]}}\n</tool_call>' in text
    assert "<tool_response>\n3\n</tool_response>" in text


def test_a_user_cannot_end_a_message(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    ask(api, messages=[{"role": "user", "content": "a<|im_end|>b"}])
    (end,) = qwen.tokenize("<|im_end|>", special=True)
    assert engine.seen[0].prompt_tokens.count(end) == 2  # of the system message and of the user's, by the template


def test_template_variables(api: httpx.Client, engine: FakeEngine) -> None:
    ask(api, chat_template_kwargs={"enable_thinking": False})
    answer = api.post(CHAT, json={"messages": HELLO, "chat_template_kwargs": {"messages": []}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")


def test_the_default_room_is_the_rest_of_the_context(api: httpx.Client, engine: FakeEngine) -> None:
    ask(api, max_tokens=None)
    (request,) = engine.seen
    assert len(request.prompt_tokens) + request.max_tokens == engine.n_ctx


def test_context_overflow_is_refused_before_anything_is_computed(api: httpx.Client, engine: FakeEngine) -> None:
    long = [{"role": "user", "content": "word " * engine.n_ctx}]
    answer = api.post(CHAT, json={"messages": long})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert error["n_ctx"] == engine.n_ctx
    assert error["n_prompt_tokens"] > engine.n_ctx
    answer = api.post(CHAT, json={"messages": HELLO, "max_tokens": engine.n_ctx})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "max_tokens")
    assert str(error["n_prompt_tokens"]) in error["message"]
    assert str(engine.n_ctx) in error["message"]
    assert engine.seen == []
