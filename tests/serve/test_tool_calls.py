"""Tool calls in text, whole and in pieces."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from minfer.errors import UnsupportedError
from minfer.serve.chat_prompt import check_tools
from minfer.serve.errors import ApiError
from minfer.serve.tool_calls import ParsedCall, ToolFormat, call_parser, tool_format
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PARSED = ParsedCall("add", '{"a": 1}')


def parse(form: ToolFormat | None, text: str, size: int, *, is_cut: bool = False) -> tuple[str, list[ParsedCall]]:
    """What is text and what are calls, with the text coming in pieces of a size."""
    parser = call_parser(form, ["add", "sub"])
    pieces = [p for i in range(0, len(text), size) for p in parser.push(text[i : i + size])] + parser.finish(
        is_cut=is_cut
    )
    assert "" not in pieces
    return "".join(p for p in pieces if isinstance(p, str)), [p for p in pieces if isinstance(p, ParsedCall)]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("No call.\n", "No call.\n", []),
        (CALL, "", [PARSED]),
        (f"First.\n\n{CALL}\n", "First.", [PARSED]),
        (f"{CALL}\n{CALL}", "", [PARSED, PARSED]),
        (f"{CALL}\nAfter.", "After.", [PARSED]),
        (f"a\n{CALL}b", "ab", [PARSED]),
        (
            '<tool_call>{"name": "x", "arguments": "{\\"b\\": \\"é\\"}"}</tool_call>',
            "",
            [ParsedCall("x", '{"b": "é"}')],
        ),
        ('<tool_call>{"name": "x"}', "", [ParsedCall("x", "{}")]),
        ('<tool_call>{"name": "x", "argum', '<tool_call>{"name": "x", "argum', []),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ('<tool_call>{"name": "x", "arguments": [1]}</tool_call>',) * 2 + ([],),
        ('<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>',) * 2 + ([],),
        ("a <tool_ call> <", "a <tool_ call> <", []),
    ],
)
def test_tagged(text: str, content: str, calls: list[ParsedCall], size: int) -> None:
    assert parse(ToolFormat.TAGGED, text, size) == (content, calls)


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("No call.", "No call.", []),
        ('{"name": "add", "parameters": {"a": 1}}', "", [PARSED]),
        (
            '\n[{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {}}]\n',
            "",
            [PARSED, ParsedCall("sub", "{}")],
        ),
        ('{"name": "add", "parameters": {"a": 1}}; {"name": "sub"}', "", [PARSED, ParsedCall("sub", "{}")]),
        ('{"name": "unknown", "parameters": {}}',) * 2 + ([],),
        ('{"name": "add", "parameters": {"a": 1}} and more',) * 2 + ([],),
        ('{"colour": "red"}',) * 2 + ([],),
        ("[1, 2]",) * 2 + ([],),
        ("[" * 3000,) * 2 + ([],),
        ('```json\n{"name": "add", "arguments": {"a": 1}}\n```', "", [PARSED]),
        ('```\n{"name": "add", "arguments": {"a": 1}}\n{"name": "sub"}\n```\n', "", [PARSED, ParsedCall("sub", "{}")]),
        ('```json\n{"colour": "red"}\n```',) * 2 + ([],),
        ("```python\nprint()\n```",) * 2 + ([],),
        ('{{"name": "add", "arguments": {"a": 1}}}', "", [PARSED]),
        ("{{x}}",) * 2 + ([],),
        ("", "", []),
    ],
)
@pytest.mark.parametrize("form", ToolFormat)
def test_bare_json(form: ToolFormat, text: str, content: str, calls: list[ParsedCall], size: int) -> None:
    assert parse(form, text, size) == (content, calls)


BARE = '{"name": "add", "parameters": {"a": 1}}'


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f'{BARE}\n{{"name": "su', '{"name": "su', [PARSED]),
        (f"{BARE}; {{", "{", [PARSED]),
        (f'[{BARE}, {{"name": "sub", "parameters": {{"b"', '{"name": "sub", "parameters": {"b"', [PARSED]),
        (f"[{BARE}, {BARE}, ", "", [PARSED, PARSED]),
        (f"[{BARE}", "", [PARSED]),
        (f'```json\n{BARE}\n{{"na', '{"na', [PARSED]),
        (f"```json\n{BARE}\n", "", [PARSED]),
        (f"{BARE} and mo",) * 2 + ([],),
        ('{"name": "unknown"}\n{"na',) * 2 + ([],),
        ('{"name": "add", "param',) * 2 + ([],),
        ("[[1], [2",) * 2 + ([],),
        ("[" * 3000,) * 2 + ([],),
        ("```json\n{",) * 2 + ([],),
    ],
)
@pytest.mark.parametrize("form", ToolFormat)
def test_complete_calls_before_one_that_was_cut_off(
    form: ToolFormat, text: str, content: str, calls: list[ParsedCall], size: int
) -> None:
    assert parse(form, text, size, is_cut=True) == (content, calls)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_complete_tagged_calls_before_one_that_was_cut_off(size: int) -> None:
    for end in ('<tool_call>{"name": "su', "<tool_"):
        assert parse(ToolFormat.TAGGED, f"{CALL}\n{end}", size, is_cut=True) == (end, [PARSED])
    assert parse(ToolFormat.TAGGED, f"{CALL}\n", size, is_cut=True) == ("", [PARSED])


@pytest.mark.parametrize("start", ["Text", "```python\nx", "```json\nnot", "<b>"])
def test_what_can_be_no_call_is_not_held_back(start: str) -> None:
    for form in ToolFormat:
        assert call_parser(form, ["add"]).push(start) == [start]


def test_without_tools_everything_is_text() -> None:
    assert parse(None, CALL, 4) == (CALL, [])


def test_the_form_is_the_template_s(qwen: Tokenizer) -> None:
    assert qwen.chat_template is not None
    assert tool_format(qwen.chat_template.source) is ToolFormat.TAGGED
    assert tool_format("{{ '[TOOL_CALLS]' }}") is ToolFormat.BARE_JSON
    assert tool_format("""Respond as {"name": function name, "parameters": dictionary}.""") is ToolFormat.BARE_JSON
    for unknown in ("{{ tools }}", "<tool_call><function=x>", "[TOOL_CALLS]x[ARGS]{}"):
        with pytest.raises(UnsupportedError, match="<tool_call>"):
            tool_format(unknown)


def chat(api: httpx.Client, **fields: Any) -> Any:
    return api.post(CHAT, json={"messages": [{"role": "user", "content": "?"}], "tools": [ADD], **fields})


def test_one_call_at_a_time(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: f"{CALL}\n" * 3 + "and on and on " * 200
    choice = chat(api, parallel_tool_calls=False).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"] is None
    streamed = chat(api, parallel_tool_calls=False, stream=True).text
    assert streamed.count('"name":"add"') == 1
    assert '"finish_reason":"tool_calls"' in streamed
    engine.wait_until(lambda now: now.n_active == 0)
    assert len(chat(api, max_tokens=100).json()["choices"][0]["message"]["tool_calls"]) == 3


def test_ids_are_what_templates_insist_on(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: f"{CALL}\n" * 2
    ids = [call["id"] for call in chat(api).json()["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(i) == 9 and i.isalnum() for i in ids)


def test_no_tools_where_none_are_wanted(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer) -> None:
    engine.reply = lambda request, sample: CALL
    message = chat(api, tool_choice="none").json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": CALL}
    assert "# Tools" not in qwen.detokenize(engine.seen[0].prompt_tokens)


def test_an_answer_that_was_cut_short_is_no_call(api: httpx.Client, engine: FakeEngine) -> None:
    engine.reply = lambda request, sample: CALL
    choice = chat(api, max_tokens=8).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("<tool_call>")


@pytest.mark.parametrize("first", [CALL, '{"name": "add", "arguments": {"a": 1}}'])
def test_a_call_before_one_that_was_cut_off(api: httpx.Client, engine: FakeEngine, qwen: Tokenizer, first: str) -> None:
    engine.reply = lambda request, sample: f"{first}\n{first}"
    n_tokens = len(qwen.tokenize(f"{first}\n", special=True)) + 8
    choice = chat(api, max_tokens=n_tokens).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    content, calls, reasons = "", [], []
    for line in chat(api, max_tokens=n_tokens, stream=True).text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))["choices"][0]
            content += event["delta"].get("content") or ""
            calls += event["delta"].get("tool_calls", [])
            reasons.append(event["finish_reason"])
    assert content == choice["message"]["content"]
    assert [entry["function"] for entry in calls] == [call["function"]]
    assert reasons[-1] == "length"


def test_a_template_that_knows_no_tools(smol: Tokenizer) -> None:
    with pytest.raises(ApiError, match="no place") as error:
        check_tools(smol, [ADD])
    assert (error.value.status, error.value.param) == (400, "tools")
