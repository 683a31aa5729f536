"""An answer that begins with a given text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minfer
from chat_templates import OPENED_THINKING, THINKING
from edited_gguf import edited
from minfer.errors import ParameterError
from tiny_load import tiny_path

QUESTION = [{"role": "user", "content": "What now?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[minfer.Model]:
    with minfer.load(tiny_path(tmp_path_factory.mktemp("prefill")), backend="reference") as loaded:
        yield loaded


def begun(model: minfer.Model, text: str) -> list[int]:
    return model.tokenizer.encode_chat([*QUESTION, {"role": "assistant", "content": text}], continue_final_message=True)


def test_the_answer_goes_on_with_the_prefill(model: minfer.Model) -> None:
    got = model.generate(QUESTION, prefill="Well, ", **GREEDY)
    assert got.tokens == model.generate(begun(model, "Well, "), **GREEDY).tokens
    assert got.tokens != model.generate(QUESTION, **GREEDY).tokens
    assert got.text == model.generate(begun(model, "Well, "), **GREEDY).text
    assert got.stats.n_prompt_tokens == len(begun(model, "Well, "))


def test_a_last_message_of_the_assistant_is_the_same(model: minfer.Model) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Well, "}]
    got = model.generate(messages, continue_final_message=True, **GREEDY)
    assert got.tokens == model.generate(QUESTION, prefill="Well, ", **GREEDY).tokens
    assert got.tokens != model.generate(messages, **GREEDY).tokens


@pytest.mark.parametrize("shifts", [False, True])
def test_all_ways_to_generate_take_it(model: minfer.Model, shifts: bool) -> None:
    want = model.generate(QUESTION, prefill="Well, ", **GREEDY).tokens
    stream = model.stream(QUESTION, prefill="Well, ", context_shift=shifts, **GREEDY)
    text = "".join(stream)
    assert (stream.result.tokens, stream.result.text) == (want, text)
    assert [sample.tokens for sample in model.samples(QUESTION, 2, prefill="Well, ", **GREEDY)] == [want, want]


def test_no_prefill_changes_nothing(model: minfer.Model) -> None:
    want = model.generate(QUESTION, **GREEDY).tokens
    assert model.generate(QUESTION, prefill="", continue_final_message=False, **GREEDY).tokens == want
    blank = [*QUESTION, {"role": "assistant", "content": ""}]
    assert model.generate(blank, continue_final_message=True, **GREEDY).tokens == want


@pytest.mark.parametrize(
    ("prompt", "options", "problem"),
    [
        (QUESTION, {"prefill": 3}, "prefill must be the text that the answer begins with, not 3"),
        (QUESTION, {"prefill": "x", "continue_final_message": True}, "use one of them"),
        (QUESTION, {"continue_final_message": True}, "only an assistant's message can be continued"),
        ("raw", {"prefill": "x"}, "prefill goes with messages"),
        ([1, 2], {"continue_final_message": True}, "continue_final_message goes with messages"),
        (QUESTION, {"template_variables": {"continue_final_message": True}}, "every chat template gets already"),
    ],
)
def test_what_does_not_go_is_refused(model: minfer.Model, prompt: Any, options: Any, problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        model.generate(prompt, **options)


def test_a_conversation_keeps_the_whole_answer(model: minfer.Model) -> None:
    with model.conversation(**GREEDY) as chat:
        stream = chat.ask("What now?", prefill="Well, ")
        text = "".join(stream)
        assert stream.result.tokens == model.generate(QUESTION, prefill="Well, ", **GREEDY).tokens
        assert chat.messages[-1] == {"role": "assistant", "content": "Well, " + text}
        assert list(chat.tokens[: -len(stream.result.tokens)]) == begun(model, "Well, ")
        n_before = chat.n_tokens
        for _ in (second := chat.ask("And then?")):
            pass
        # All of the first turn but its last token, which was never computed, is reused.
        assert second.result.stats.n_cached_tokens >= n_before - 1
        assert chat.messages[-1]["content"] == second.result.text
        for _ in (third := chat.regenerate(prefill="Then ")):
            pass
        assert chat.messages[-1]["content"] == "Then " + third.result.text


def test_it_is_the_same_without_reuse(model: minfer.Model) -> None:
    tokens = []
    for reuse in (True, False):
        with model.conversation(reuse=reuse, prefill="So: ", **GREEDY) as chat:
            for text in ("a", "b", "c"):
                for _ in chat.ask(text):
                    pass
            tokens.append(chat.tokens)
            assert all(m["content"].startswith("So: ") for m in chat.messages if m["role"] == "assistant")
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("template", [THINKING, OPENED_THINKING])
def test_thoughts_may_be_begun(tmp_path: Path, template: str) -> None:
    path = edited(tiny_path(tmp_path), tmp_path / "thinking.gguf", {"tokenizer.chat_template": template})
    with minfer.load(path, backend="reference") as model, model.conversation(**GREEDY) as chat:
        stream = chat.ask("What now?", prefill="<think>\nLet me")
        parts = list(chat.parts(stream))
        assert all(part.is_thinking for part in parts)
        assert chat.messages[-1]["reasoning_content"] == ("Let me" + "".join(part.text for part in parts)).strip()
        stream = chat.ask("What now?", prefill="Yes")
        parts = list(chat.parts(stream))
        assert not any(part.is_thinking for part in parts)
        assert chat.messages[-1] == {"role": "assistant", "content": "Yes" + "".join(part.text for part in parts)}


def test_a_conversation_with_a_prefill_is_saved_and_goes_on(model: minfer.Model, tmp_path: Path) -> None:
    path = tmp_path / "chat"
    with model.conversation(prefill="So: ", **GREEDY) as chat:
        for _ in chat.ask("a"):
            pass
        chat.save(path)
        for _ in (want := chat.ask("b")):
            pass
    with model.load_conversation(path) as chat:
        for _ in (got := chat.ask("b")):
            pass
    assert got.result.tokens == want.result.tokens


def test_a_given_template_takes_the_place_of_the_file_s(tmp_path: Path) -> None:
    own = tiny_path(tmp_path)
    bare = edited(own, tmp_path / "bare.gguf", {"tokenizer.chat_template": None})
    with minfer.load(own, backend="reference") as model:
        want = model.generate(QUESTION, **GREEDY).tokens
    with minfer.load(bare, backend="reference", chat_template="chatml") as model:
        assert model.generate(QUESTION, **GREEDY).tokens == want
    assert minfer.load_tokenizer(bare, "chatml").apply_template(QUESTION).startswith("<|im_start|>user\nWhat now?")
    with pytest.raises(ParameterError, match="none of the known names"):
        minfer.load(bare, chat_template="chatlm")
