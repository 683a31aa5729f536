"""Thoughts and answer, told apart."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from minfer.serve.answer_parser import AnswerParser
from minfer.serve.chat_prompt import ChatPrompt, chat_prompt
from minfer.serve.schema_chat import ChatRequest
from minfer.text import build_tokenizer
from serve_fake_engine import FakeEngine
from text_vocabularies import real_metadata

CHAT = "/v1/chat/completions"
THINKING = "<think>\nHmm.\nOh!\n</think>\n\nThe answer."


def split(text: str, size: int, *, starts_in_thought: bool = False) -> tuple[str, str]:
    prompt = ChatPrompt((1,), starts_in_thought, None, frozenset())
    parser = AnswerParser(prompt, splits_reasoning=True, one_call=False)
    updates = [parser.push(text[i : i + size]) for i in range(0, len(text), size)] + [parser.finish()]
    return "".join(update.reasoning for update in updates), "".join(update.content for update in updates)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        (THINKING, "Hmm.\nOh!", "The answer."),
        ("\n <think>a b</think>c", "a b", "c"),
        ("<think></think>c", "", "c"),
        ("<think>\n\n</think>\n\nc\n", "", "c\n"),
        ("Plain. <think>x</think>", "", "Plain. <think>x</think>"),
        ("  indented", "", "  indented"),
        ("<thin ice", "", "<thin ice"),
        ("<think", "", "<think"),
        ("<think>cut sh", "cut sh", ""),
        ("<think>cut </thi", "cut </thi", ""),
        ("<think>a</think> b </think> c", "a", "b </think> c"),
        ("", "", ""),
    ],
)
def test_splitting(text: str, thought: str, answer: str, size: int) -> None:
    assert split(text, size) == (thought, answer)


@pytest.mark.parametrize("size", [1, 1000])
def test_a_prompt_that_opened_the_thoughts(size: int) -> None:
    assert split("Hmm.\n</think>\n\nYes.", size, starts_in_thought=True) == ("Hmm.", "Yes.")
    assert split("Hmm.", size, starts_in_thought=True) == ("Hmm.", "")


def chat(api: httpx.Client, **fields: Any) -> httpx.Response:
    return api.post(CHAT, json={"messages": [{"role": "user", "content": "?"}], **fields})


def test_reasoning_is_told_apart(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: THINKING
    message = chat(api).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "The answer.", "reasoning_content": "Hmm.\nOh!"}
    message = chat(api, reasoning_format="none").json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": THINKING}


def test_reasoning_in_a_stream(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: THINKING
    blocks = chat(api, stream=True).text.split("\n\n")[:-2]
    deltas = [json.loads(block.removeprefix("data: "))["choices"][0]["delta"] for block in blocks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hmm.\nOh!"
    assert "".join(delta.get("content", "") for delta in deltas) == "The answer."
    assert deltas[0]["role"] == "assistant"


@pytest.mark.parametrize(("end", "opens"), [("<think>\n", True), ("", False), ("<think>\n\n</think>\n\n", False)])
def test_the_template_may_open_the_thoughts(end: str, opens: bool) -> None:
    template = "{% for m in messages %}{{ m.content + m.get('reasoning_content', '') }}{% endfor %}" + end
    tokenizer = build_tokenizer({**real_metadata("smollm2-135m"), "tokenizer.chat_template": template})
    request = ChatRequest.model_validate(
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "a", "reasoning_content": "b"},
            ],
            "continue_final_message": False,
        }
    )
    prompt = chat_prompt(tokenizer, request.messages, request, with_tools=True)
    assert prompt.starts_in_thought is opens
    assert tokenizer.detokenize(prompt.tokens).rstrip() == "Hiab" + end.rstrip()
