"""A last message of the assistant is continued, as in llama.cpp's server, and what comes back is what is new."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello!"}
BEGUN = {"role": "assistant", "content": "The answer is"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def ask(api: httpx.Client, *messages: Any, **fields: Any) -> Any:
    answer = api.post(CHAT, json={"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


@pytest.mark.parametrize(
    "content", ["The answer is", [{"type": "text", "text": "The answer"}, {"type": "text", "text": "is"}]]
)
def test_a_last_message_of_the_assistant_is_continued(
    api: httpx.Client, engine: FakeEngine, qwen: Tokenizer, content: Any
) -> None:
    engine.reply = lambda request, sample: " 42."
    assert ask(api, HELLO, {"role": "assistant", "content": content}) == {"role": "assistant", "content": " 42."}
    (request,) = engine.seen
    text = qwen.detokenize(request.prompt_tokens)
    assert text.endswith("<|im_start|>assistant\nThe answer" + (" is" if isinstance(content, str) else "\nis"))
    assert request.continues_text


def test_a_stream_holds_what_is_new(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: " 42."
    answer = api.post(CHAT, json={"messages": [HELLO, BEGUN], "stream": True})
    blocks = [json.loads(block.removeprefix("data: ")) for block in answer.text.split("\n\n")[:-2]]
    assert "".join(block["choices"][0]["delta"].get("content", "") for block in blocks) == " 42."


@pytest.mark.parametrize(
    ("fields", "end", "continues"),
    [
        ({"continue_final_message": True}, "assistant\nThe answer is", True),
        ({"continue_final_message": True, "add_generation_prompt": False}, "assistant\nThe answer is", True),
        ({"continue_final_message": None, "add_generation_prompt": None}, "assistant\nThe answer is", True),
        ({"add_generation_prompt": True}, "assistant\nThe answer is", True),
        ({"continue_final_message": False}, "The answer is<|im_end|>\n<|im_start|>assistant\n", False),
        ({"add_generation_prompt": False}, "The answer is<|im_end|>\n", False),
    ],
)
def test_the_fields_of_vllm_say_otherwise(
    api: httpx.Client, engine: FakeEngine, qwen: Tokenizer, fields: Any, end: str, continues: bool
) -> None:
    ask(api, HELLO, BEGUN, **fields)
    (request,) = engine.seen
    assert qwen.detokenize(request.prompt_tokens).endswith(end)
    assert request.continues_text is continues
    answer = api.post("/apply-template", json={"messages": [HELLO, BEGUN], **fields})
    assert answer.json()["prompt"].endswith(end)


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([HELLO], {}),
        ([HELLO, BEGUN], {"add_generation_prompt": True}),
        ([HELLO, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}], {}),
    ],
)
def test_what_can_not_be_continued(api: httpx.Client, messages: Any, fields: Any) -> None:
    answer = api.post(CHAT, json={"messages": messages, "continue_final_message": True, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "continue_final_message")


def test_an_empty_message_begins_an_answer(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    ask(api, HELLO, {"role": "assistant", "content": ""})
    (request,) = engine.seen
    assert request.prompt_tokens == tuple(qwen.encode_chat([HELLO]))
    assert not request.continues_text


@pytest.mark.parametrize(
    ("content", "reply", "message"),
    [
        ("<think>\nHmm", " so.\n</think>\n\nYes.", {"reasoning_content": "so.", "content": "Yes."}),
        ("<think>\nHmm.\n</think>\n\n", "Yes.", {"content": "Yes."}),
        ("Well,", " yes.", {"content": " yes."}),
    ],
)
def test_thoughts_go_on(api: httpx.Client, engine: FakeEngine, content: str, reply: str, message: Any) -> None:
    engine.reply = lambda request, sample: reply
    assert ask(api, HELLO, {"role": "assistant", "content": content}) == {"role": "assistant", **message}


def test_a_call_that_the_message_begins_is_a_call(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: '"weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    message = ask(api, HELLO, {"role": "assistant", "content": '<tool_call>\n{"name": '}, tools=[TOOL])
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", {"city": "Oslo"})
    engine.reply = lambda request, sample: " fine.\n"
    message = ask(api, HELLO, {"role": "assistant", "content": "It is"}, tools=[TOOL])
    assert message == {"role": "assistant", "content": " fine.\n"}


def test_a_variable_can_not_say_so(api: httpx.Client) -> None:
    body = {"messages": [HELLO, BEGUN], "chat_template_kwargs": {"continue_final_message": False}}
    answer = api.post(CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")
