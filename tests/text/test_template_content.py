"""No text of a message is lost: each template gets contents in the form that it reads, or the message is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from chat_templates import CHATML, THINKING
from minfer.errors import MinferWarning, TemplateError
from minfer.text import ChatTemplate, build_tokenizer
from text_vocabularies import bpe_metadata

PARTS = "{% for m in messages %}<{{ m['role'] }}>{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
"""Reads parts, and of a string nothing."""
FIRST_PART = "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text | trim }}{% endfor %}"
FAILS_ON_TEXT = "{% for m in messages %}<{{ m.role }}>{{ m.content[0].text + '' }}{% endfor %}"
MIXED = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
WRITTEN_OUT = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content }}{% endfor %}"
EITHER = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}?{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)
ONLY_TALK = "{% for m in messages if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endfor %}"
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
)
CALLS_OR_CONTENT = (
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function | tojson }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **others}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def call(**arguments: Any) -> dict[str, Any]:
    return {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}


TALK = [system("Be brief."), user("Hi!"), assistant("Yes?"), user("Bye.")]
WRITTEN = "<system>Be brief.<user>Hi!<assistant>Yes?<user>Bye."


@pytest.mark.parametrize("source", [PARTS, FIRST_PART, FAILS_ON_TEXT, MIXED, WRITTEN_OUT, EITHER])
def test_contents_come_in_the_form_that_the_template_reads(source: str) -> None:
    assert ChatTemplate(source).render(TALK) == WRITTEN


def test_what_a_template_reads_is_found_out_once_for_each_role(monkeypatch: pytest.MonkeyPatch) -> None:
    template, n = ChatTemplate(PARTS), 0
    render_plain = ChatTemplate.render_plain

    def counted(self: ChatTemplate, variables: Any) -> str:
        nonlocal n
        n += 1
        return render_plain(self, variables)

    monkeypatch.setattr(ChatTemplate, "render_plain", counted)
    for expected in (8, 1, 1):  # three roles in two forms, the prompt, and once with markers
        n = 0
        template.render(TALK)
        assert n == expected


def test_parts_of_several_texts_reach_a_template_that_reads_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatTemplate(PARTS).render([{"role": "user", "content": parts}]) == "<user>a\nb"


def test_control_tokens_of_a_user_stay_text_in_parts_too() -> None:
    tokenizer = build_tokenizer(bpe_metadata([("<end>", 3)]) | {"tokenizer.chat_template": PARTS})
    assert tokenizer.encode_chat([user("a<end>")]) == [*b"<user>a<end>"]


@pytest.mark.parametrize(
    ("messages", "lost"),
    [
        ([system("S"), user("u")], r"the text of messages\[0\], whose role is 'system'"),
        ([user("u"), system("u")], r"the text of messages\[1\], whose role is 'system'"),
        ([user("u"), tool("42"), user("x")], r"the text of messages\[1\], whose role is 'tool'"),
        (
            [user("u"), tool("a long answer of some tool, which is nowhere else")],
            r"the text of messages\[1\], whose role is 'tool'",
        ),
        ([user("u"), assistant("", tool_calls=[call(x="y")])], r"the tool calls of messages\[1\].*'assistant'"),
        ([user("u"), assistant("", tool_calls=[call()])], r"the tool calls of messages\[1\].*'assistant'"),
    ],
)
def test_what_a_template_leaves_out_is_refused(messages: Any, lost: str) -> None:
    template = ChatTemplate(ONLY_TALK)
    for _ in range(2):
        with pytest.raises(TemplateError, match=f"leaves out {lost}.*use another template"):
            template.render(messages)
    assert template.render([user("u"), assistant("a")]) == "<user>u<assistant>a"


def test_a_template_that_reads_neither_form_is_refused() -> None:
    for source in ("{{ messages | length }}", "{% for m in messages %}{{ m.text }}{% endfor %}"):
        with pytest.raises(TemplateError, match=r"leaves out the text of messages\[0\], whose role is 'user'"):
            ChatTemplate(source).render([user("hi")])


def test_a_text_that_only_seems_to_be_there_is_missed() -> None:
    template = ChatTemplate("You are helpful. {% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(TemplateError, match="role is 'system'"):
        template.render([system("help"), user("u")])


@pytest.mark.parametrize(
    "change",
    ["| trim", "| tojson", "| upper", ".replace('\\n', ' ')", ".split('</think>')[-1]", "| escape"],
)
@pytest.mark.parametrize(
    "text", ["  hi\n", 'He said "no", <i>then</i>\n\n  he   left, & so did <think>she</think> too. ']
)
def test_a_text_that_is_trimmed_changed_or_escaped_is_not_lost(change: str, text: str) -> None:
    source = f"{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content {change} }}}}{{% endfor %}}"
    template = ChatTemplate(source)
    for _ in range(2):
        assert template.render([user(text), assistant(text), user(text)])


def test_blank_texts_can_not_be_lost() -> None:
    assert ChatTemplate(ONLY_TALK).render([system(" \n"), user(""), tool("")]) == "<user>"


def test_calls_and_answers_that_are_kept_are_no_error() -> None:
    messages = [user("u"), assistant("", tool_calls=[call(city="Oslo", n=1)]), tool("21"), user("x")]
    assert '"city": "Oslo"' in ChatTemplate(CALLS_OR_CONTENT).render(messages)


def test_what_is_said_beside_a_call_is_missed_with_a_warning_once() -> None:
    template = ChatTemplate(CALLS_OR_CONTENT)
    messages = [user("u"), assistant("Let me look.", tool_calls=[call(x="y")]), tool("21")]
    with pytest.warns(
        MinferWarning, match="leaves out the content of a message of role 'assistant' that has tool calls"
    ):
        template.render(messages)
    assert "Let me look." not in template.render(messages)


def test_thoughts_are_missed_between_calls_alone() -> None:
    thoughtful = assistant("a", reasoning_content="hmm")
    template = ChatTemplate(CHATML)
    template.render([user("u"), thoughtful, user("v")])  # of an earlier answer: left out by every template
    template.render([user("u"), thoughtful], add_generation_prompt=False)
    messages = [user("u"), thoughtful, tool("21")]
    with pytest.warns(MinferWarning, match="leaves out what the model thought before it called a tool"):
        template.render(messages)
    template.render(messages)
    assert "<think>\nhmm\n</think>" in ChatTemplate(THINKING).render(messages)


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_come_under_the_name_that_the_template_reads(key: str) -> None:
    source = f"{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.{key} }}}}:{{{{ m.content }}}}{{% endfor %}}"
    template = ChatTemplate(source)
    messages = [user("u"), assistant("a", reasoning_content="hmm"), tool("21")]
    for _ in range(2):
        assert template.render(messages) == "<user>:u<assistant>hmm:a<tool>:21"
    given = [user("u"), assistant("a", **{key: "hmm"}), tool("21")]
    assert template.render(given) == "<user>:u<assistant>hmm:a<tool>:21"
    with pytest.warns(MinferWarning, match="thought before it called a tool"):
        ChatTemplate(source.replace(key, "thoughts")).render(messages)
    begun = template.render([user("u"), assistant("", reasoning_content="hm")], continue_final_message=True)
    assert begun == "<user>:u<assistant>hm"


def test_a_system_message_is_put_before_the_first_question_where_the_family_does_so() -> None:
    template = ChatTemplate(GEMMA)
    question = "<start_of_turn>user\nHi!<end_of_turn>\n"
    with pytest.warns(MinferWarning, match="takes no system message: it is put in front of the first question"):
        text = template.render(TALK)
    assert text == (
        "<start_of_turn>user\nBe brief.\n\nHi!<end_of_turn>\n<start_of_turn>assistant\nYes?<end_of_turn>\n"
        "<start_of_turn>user\nBye.<end_of_turn>\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is told once
        assert template.render([system(""), user("Hi!")]) == question
        assert template.render([user("Hi!")]) == question
        assert "Be brief.\n\nHi!" in template.render(TALK)


def test_where_no_family_does_so_the_template_s_refusal_stands() -> None:
    source = GEMMA.replace("start_of_turn", "start")
    with pytest.raises(TemplateError, match="System role not supported"):
        ChatTemplate(source).render(TALK)
    with pytest.raises(TemplateError, match=r"leaves out the text.*'system'"):
        ChatTemplate(ONLY_TALK).render([system("S"), user("u")])


def test_a_template_that_leaves_a_system_message_out_silently_has_it_merged_too() -> None:
    with pytest.warns(MinferWarning, match="takes no system message"):
        text = ChatTemplate(ONLY_TALK.replace("<", "[INST]")).render([system("S"), user("u")])
    assert text == "[INST]user>S\n\nu"


CALL = assistant("", tool_calls=[call(x="y")])
WRITES_CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
KNOWS_NONE = (
    "{% for m in messages %}{% if m.content is not none %}<{{ m.role }}>{{ m.content }}</end>{% endif %}"
    + WRITES_CALLS
    + "{% endfor %}"
)


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize(
    ("says", "written"),
    [
        ("{{ m.content }}", ""),  # `none` would be written out
        ("{{ m.content | tojson if m.content is none else m.content }}", ""),
        ("{{ m.content.strip() }}", ""),  # and fail here
        ("{% if m.content is not none %}({{ m.content }}){% endif %}", "none"),
    ],
)
def test_a_call_without_a_text_has_the_content_that_the_template_knows(content: Any, says: str, written: str) -> None:
    source = f"{{% for m in messages %}}<{{{{ m.role }}}}>{says}{WRITES_CALLS}{{% endfor %}}"
    text = ChatTemplate(source).render([user("u"), CALL | {"content": content}, tool("21")])
    u, result = ("u", "21") if written == "" else ("(u)", "(21)")
    assert text == f'<user>{u}<assistant>{{"name": "f", "arguments": {{"x": "y"}}}}<tool>{result}'


def test_no_empty_answer_is_written_beside_a_call() -> None:
    text = ChatTemplate(KNOWS_NONE).render([user("u"), CALL, tool("21")])
    assert text == '<user>u</end>{"name": "f", "arguments": {"x": "y"}}<tool>21</end>'
