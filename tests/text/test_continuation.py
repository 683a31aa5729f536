"""Prompts that end where the last message does, so that the model goes on with it."""

from __future__ import annotations

from typing import Any

import pytest

from chat_templates import CHATML, INST, OPENED_THINKING, THINKING, TRIMMING
from minfer.errors import MinferWarning, ParameterError, TemplateError
from minfer.text import ChatTemplate, build_tokenizer
from minfer.text.template.given import TEMPLATE_NAMES, find_template
from text_vocabularies import CONTROL, bpe_metadata, real_tokenizer, spm_metadata

USER = {"role": "user", "content": "hi"}
HEAD = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text | trim }}{% endfor %}</end>{% endfor %}"


def assistant(content: str, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def continued(source: str, *messages: Any, **others: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, continue_final_message=True, **others)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (CHATML, f"{HEAD}The capital is "),
        (TRIMMING, f"{HEAD}The capital is "),  # also the space at its end, which the template would trim
        (THINKING, f"{HEAD}<think>\n\n</think>\n\nThe capital is "),
        (OPENED_THINKING, f"{HEAD}<think>\n\n</think>\n\nThe capital is ".replace("assistant\n<think>\n<think>", "")),
        (INST, "<s>[INST] hi [/INST] The capital is "),
        (PARTS, "<user>hi</end><assistant>The capital is "),
    ],
)
def test_the_prompt_ends_with_the_text(source: str, prompt: str) -> None:
    assert continued(source, USER, assistant("The capital is ")) == prompt


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_named_templates_continue_an_answer_too(name: str) -> None:
    source = find_template(name).source
    prompt = continued(source, USER, assistant("The capital"))
    whole = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        [USER, assistant("The capital")], add_generation_prompt=False
    )
    assert whole.startswith(prompt)
    assert prompt.endswith("The capital")


@pytest.mark.parametrize("content", ["<think>\nLet me", " <think>Let me"])
def test_a_text_that_begins_with_thoughts_stands_behind_the_start_of_an_answer(content: str) -> None:
    assert continued(THINKING, USER, assistant(content)) == HEAD + content
    assert continued(CHATML, USER, assistant(content)) == HEAD + content
    assert continued(OPENED_THINKING, USER, assistant(content)) == f"{HEAD}<think>\nLet me"


def test_thoughts_are_continued_where_there_is_no_text() -> None:
    prompt = continued(THINKING, USER, assistant("", reasoning_content="Let me "))
    assert prompt == f"{HEAD}<think>\nLet me "
    with pytest.raises(TemplateError, match="leaves out the reasoning_content of the last message"):
        continued(CHATML, USER, assistant("", reasoning_content="Let me"))


def test_thoughts_before_the_text_stay_or_are_missed() -> None:
    message = assistant("Yes", reasoning_content="hmm")
    assert continued(THINKING, USER, message) == f"{HEAD}<think>\nhmm\n</think>\n\nYes"
    with pytest.warns(MinferWarning, match="leaves out the thoughts .* of the message that is continued"):
        assert continued(CHATML, USER, message) == f"{HEAD}Yes"


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_text_begins_an_answer(blank: str) -> None:
    assert continued(CHATML, USER, assistant(blank)) == HEAD + blank


def test_tools_are_written_as_ever() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    tokenizer = real_tokenizer("qwen2.5-coder-0.5b")
    messages = [USER, assistant("<tool_call>\n")]
    whole = tokenizer.apply_template(messages, tools=[tool], add_generation_prompt=False)
    assert tokenizer.apply_template(messages, [tool], continue_final_message=True) == whole.removesuffix("<|im_end|>\n")


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([USER], "the last one has the role 'user'"),
        ([USER, assistant("x", tool_calls=[{"function": {"name": "f", "arguments": {}}}])], "the last one calls tools"),
    ],
)
def test_what_can_not_be_continued_is_refused(messages: Any, problem: str) -> None:
    with pytest.raises(ParameterError, match=f"only an assistant's message can be continued, and {problem}"):
        continued(CHATML, *messages)


def test_control_tokens_in_the_text_are_tokens_only_if_the_model_is_trusted() -> None:
    template = {"tokenizer.chat_template": "{{ messages[0].content }}<end>"}
    tokenizer = build_tokenizer(bpe_metadata([("<end>", CONTROL)]) | template)
    messages = [assistant("a<end>b")]
    assert tokenizer.encode_chat(messages, continue_final_message=True) == [*b"a", 256, *b"b"]
    prompt = tokenizer.render_chat(messages, continue_final_message=True, trust_model=False)
    assert [token for piece in tokenizer.pieces(prompt) for token in piece.tokens] == [*b"a<end>b"]


def test_bos_is_there_once() -> None:
    words = [("▁", -1.0), ("h", -2.0), ("▁h", -3.0)]
    tokenizer = build_tokenizer(spm_metadata(words, add_bos_token=True), "vicuna")
    assert tokenizer.encode_chat([USER, assistant("h")], continue_final_message=True).count(1) == 1
