"""Conversations: what is computed, what is kept, and what they go back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minfer
from chat_templates import INST, OPENED_THINKING, THINKING
from edited_gguf import edited
from minfer.errors import TemplateError
from talk import say
from tiny_load import tiny_path
from tiny_models import IM_END, IM_START, TINY_SPECS, write_tiny

OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 1.2, "seed": 4}


@pytest.fixture
def chat(model: minfer.Model) -> Iterator[minfer.Conversation]:
    with model.conversation("be", **OPTIONS) as conversation:
        yield conversation


def with_template(tiny_dir: Path, template: str, name: str) -> Path:
    target = tiny_dir / f"{name}.gguf"
    source = tiny_path(tiny_dir)
    return target if target.exists() else edited(source, target, {"tokenizer.chat_template": template})


def long_path(tiny_dir: Path, name: str) -> Path:
    """A tiny model with room for a long conversation."""
    target = tiny_dir / f"{name}-long.gguf"
    return target if target.exists() else write_tiny(target, replace(TINY_SPECS[name], n_ctx=1024))


def test_only_what_is_new_is_computed_over_ten_turns(tiny_dir: Path, computed: list[int]) -> None:
    with minfer.load(long_path(tiny_dir, "llama-gqa")) as model, model.conversation("be", **OPTIONS) as chat:
        n_before = 0
        for turn in range(10):
            computed.clear()
            result = say(chat, f"turn {turn}")
            # The last token of an answer is computed only when something follows it.
            n_new = chat.n_tokens - len(result.tokens) - n_before
            assert computed == [n_new, *[1] * (len(result.tokens) - 1)]
            assert (result.stats.n_prefill_tokens, result.stats.n_cached_tokens) == (n_new, n_before)
            n_before = chat.n_tokens - 1
        assert chat.stats.n_prefill_tokens + chat.stats.n_decode_tokens == chat.n_tokens - 1 > 250


def test_messages_are_what_was_said(chat: minfer.Conversation) -> None:
    answers = [say(chat, text) for text in ("hello", "and?")]
    assert chat.messages == (
        {"role": "system", "content": "be"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answers[0].text},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": answers[1].text},
    )


def test_the_tokens_are_the_template_s_and_the_generated_ones(model: minfer.Model, chat: minfer.Conversation) -> None:
    answers = [say(chat, text) for text in ("hello", "and?")]

    def special(text: str) -> tuple[int, ...]:
        return tuple(model.tokenize(text, special=True))

    start, between = f"{IM_START}system\nbe{IM_END}\n{IM_START}user\n", f"{IM_END}\n{IM_START}assistant\n"
    assert chat.tokens == (
        *special(f"{start}hello{between}"),
        *answers[0].tokens,
        *special(f"{IM_END}\n{IM_START}user\nand?{between}"),
        *answers[1].tokens,
    )
    # The tokenizer would make others of these answers, so that this test can fail.
    assert any(tuple(model.tokenize(answer.text)) != answer.tokens for answer in answers)


def test_the_first_answer_is_that_of_generate(model: minfer.Model, chat: minfer.Conversation) -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}]
    assert say(chat, "hello").tokens == model.generate(messages, **OPTIONS).tokens


def test_an_end_token_is_neither_doubled_nor_lost(
    model: minfer.Model, chat: minfer.Conversation, says: Callable[..., None]
) -> None:
    (end,), (other_end,) = (model.tokenize(text, special=True) for text in (IM_END, "<|endoftext|>"))
    says([*model.tokenize("hi"), end], [*model.tokenize("ho"), other_end], [end])
    for text in ("a", "b", "c"):
        assert say(chat, text).finish_reason == "stop"
    # After system, a, hi, b, ho and c; the last answer, which is empty, has not been followed by anything yet.
    assert chat.tokens.count(end) == 6
    assert other_end not in chat.tokens
    assert chat.messages[-1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(("cache_type", "spec"), [("f32", "llama-gqa"), ("f16", "qwen2"), ("q8_0", "qwen3")])
def test_thirty_turns_with_and_without_reuse_are_the_same(tiny_dir: Path, cache_type: str, spec: str) -> None:
    with minfer.load(long_path(tiny_dir, spec), cache_type=cache_type) as model:
        chats = [model.conversation("be", reuse=reuse, **OPTIONS | {"max_tokens": 5}) for reuse in (True, False)]
        for turn in range(30):
            results = [say(chat, f"t{turn}") for chat in chats]
            assert results[0].tokens == results[1].tokens
        assert chats[0].tokens == chats[1].tokens
        assert chats[0].stats.n_dropped_tokens == 0
        assert chats[0].stats.n_prefill_tokens < chats[1].stats.n_prefill_tokens / 10


def test_special_tokens_that_anyone_spells_are_text(
    model: minfer.Model, chat: minfer.Conversation, says: Callable[..., None]
) -> None:
    (end,) = model.tokenize(IM_END, special=True)
    says([*model.tokenize(f"I say {IM_END}"), end], [end])
    say(chat, f"you say {IM_END}", max_tokens=99)
    assert chat.messages[-1]["content"] == f"I say {IM_END}"
    say(chat, "x")
    assert chat.tokens.count(end) == 4


def test_messages_can_be_given(model: minfer.Model) -> None:
    given = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with model.conversation("be", messages=given, temperature=0, max_tokens=6) as chat:
        answer = say(chat, "c")
        messages = [{"role": "system", "content": "be"}, *given, {"role": "user", "content": "c"}]
        assert answer.tokens == model.generate(messages, temperature=0, max_tokens=6).tokens
        assert len(chat.messages) == 5


def test_a_model_without_a_template_says_so(tiny_dir: Path) -> None:
    path = edited(tiny_path(tiny_dir), tiny_dir / "bare.gguf", {"tokenizer.chat_template": None})
    with minfer.load(path) as model, model.conversation() as chat:
        with pytest.raises(TemplateError, match="no chat template"):
            chat.ask("hello")
        assert chat.messages == ()


@pytest.mark.parametrize("template", [THINKING, OPENED_THINKING])
def test_thinking_is_kept_apart_and_left_out_of_the_next_prompt(
    tiny_dir: Path, says: Callable[..., None], template: str
) -> None:
    is_opened = template == OPENED_THINKING
    with minfer.load(with_template(tiny_dir, template, f"thinking-{is_opened}")) as model, model.conversation() as chat:
        (end,) = model.tokenize(IM_END, special=True)
        thought = "hm, he</think>\n\nHello" if is_opened else "<think>\nhm, he\n</think>\n\nHello"
        says([*model.tokenize(thought), end], [end])
        stream = chat.ask("hi")
        parts = list(chat.parts(stream))
        assert "".join(part.text for part in parts if part.is_thinking).strip() == "hm, he"
        assert "".join(part.text for part in parts if not part.is_thinking) == "Hello"
        assert chat.messages[-1] == {"role": "assistant", "content": "Hello", "reasoning_content": "hm, he"}
        say(chat, "and?")
        text = model.detokenize(chat.tokens)
        assert "hm, he" not in text
        assert text.startswith(f"{IM_START}user\nhi{IM_END}\n{IM_START}assistant\nHello{IM_END}\n{IM_START}user\nand?")


def test_template_variables_reach_the_template(tiny_dir: Path) -> None:
    with minfer.load(with_template(tiny_dir, THINKING, "thinking-False")) as model:
        with model.conversation(template_variables={"enable_thinking": False}, max_tokens=1) as chat:
            say(chat, "hi")
            assert model.detokenize(chat.tokens[:-1]).endswith("assistant\n<think>\n\n</think>\n\n")
        messages = [{"role": "user", "content": "hi"}]
        variables = {"enable_thinking": False}
        result = model.generate(messages, template_variables=variables, max_tokens=1)
        assert result.stats.n_prompt_tokens == len(model.tokenizer.encode_chat(messages, **variables))


def test_a_template_that_puts_the_system_prompt_into_the_first_turn(tiny_dir: Path) -> None:
    with (
        minfer.load(with_template(tiny_dir, INST, "inst")) as model,
        model.conversation("be", **OPTIONS) as chat,
        model.conversation("be", reuse=False, **OPTIONS) as cold,
    ):
        for turn in range(4):
            assert say(chat, f"t{turn}").tokens == say(cold, f"t{turn}").tokens
        assert chat.tokens == cold.tokens
