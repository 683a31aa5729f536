"""Conversations that are stopped, taken back, answered anew, changed and closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minfer
from minfer.engine.runtime import Runtime
from minfer.errors import ContextError, ParameterError
from talk import say

OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 1.2, "seed": 4}


@pytest.fixture
def chat(model: minfer.Model) -> Iterator[minfer.Conversation]:
    with model.conversation("be", **OPTIONS) as conversation:
        yield conversation


def test_a_closed_stream_leaves_what_it_has_generated(chat: minfer.Conversation) -> None:
    stream = chat.ask("hello", ignore_eos=True)
    shown = next(stream) + next(stream)
    stream.close()
    assert stream.result.finish_reason == "cancelled"
    assert chat.messages[-1] == {"role": "assistant", "content": shown}
    n_before = chat.n_tokens
    assert chat.tokens[-len(stream.result.tokens) :] == stream.result.tokens
    assert say(chat, "more").stats.n_cached_tokens >= n_before - 2


def test_the_next_call_closes_an_open_stream(chat: minfer.Conversation) -> None:
    stream = chat.ask("hello", ignore_eos=True)
    shown = next(stream)
    say(chat, "more")
    assert [message["content"] for message in chat.messages[1:4]] == ["hello", shown, "more"]
    with pytest.raises(StopIteration):
        next(stream)


def test_a_turn_of_which_nothing_is_generated_is_taken_back(chat: minfer.Conversation, computed: list[int]) -> None:
    say(chat, "hello")
    messages, tokens = chat.messages, chat.tokens
    computed.clear()
    chat.ask("never read")
    chat.ask("nor this").close()
    chat.regenerate()
    chat.close()
    assert (chat.messages, chat.tokens, computed) == (messages, tokens, [])


def test_an_interrupt_while_the_prompt_is_read_takes_the_turn_back(chat: minfer.Conversation) -> None:
    say(chat, "hello")
    messages = chat.messages

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        say(chat, "more", progress=interrupt)
    assert chat.messages == messages
    say(chat, "more")
    assert [message["content"] for message in chat.messages[1::2]] == ["hello", "more"]


def test_an_interrupt_in_the_middle_of_a_step_keeps_the_conversation(
    model: minfer.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with model.conversation(**OPTIONS) as chat, model.conversation(**OPTIONS) as same:
        stream = chat.ask("hello", ignore_eos=True)
        shown = next(stream)
        with monkeypatch.context() as patch:
            patch.setattr(Runtime, "step", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(stream)
        assert chat.messages[-1]["content"] == shown
        # It goes on as if the answer had been stopped there on purpose.
        other = same.ask("hello", ignore_eos=True)
        while len(same.tokens) < len(chat.tokens):
            next(other)
        other.close()
        assert same.tokens == chat.tokens
        assert say(chat, "more").tokens == say(same, "more").tokens


def test_undo_goes_back_a_turn(model: minfer.Model, chat: minfer.Conversation, computed: list[int]) -> None:
    say(chat, "hello")
    before = chat.messages
    say(chat, "wrong")
    assert [message["role"] for message in chat.undo()] == ["user", "assistant"]
    assert chat.messages == before
    computed.clear()
    undone = say(chat, "right", temperature=0)
    assert computed[0] < 30
    with model.conversation("be", **OPTIONS) as same:
        say(same, "hello")
        assert undone.tokens == say(same, "right", temperature=0).tokens
        assert chat.tokens == same.tokens
    chat.undo()
    chat.undo()
    with pytest.raises(ParameterError, match="no turn to take back"):
        chat.undo()
    assert chat.messages == before[:1]


def test_regenerate_gives_another_answer_and_computes_one_token_of_the_prompt(
    chat: minfer.Conversation, computed: list[int]
) -> None:
    first = say(chat, "hello", max_tokens=20)
    computed.clear()
    stream = chat.regenerate(max_tokens=20)
    text = "".join(stream)
    assert stream.result.tokens != first.tokens
    assert computed[0] == 1
    assert [message["content"] for message in chat.messages[1:]] == ["hello", text]
    # With its seed, it is the first one again.
    again = chat.regenerate(seed=4, max_tokens=20)
    list(again)
    assert again.result.tokens == first.tokens


def test_a_regeneration_that_is_stopped_at_once_leaves_the_answer(chat: minfer.Conversation) -> None:
    say(chat, "hello")
    messages = chat.messages
    chat.regenerate().close()
    assert chat.messages == messages


def test_a_message_that_has_no_answer_is_answered(model: minfer.Model) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with model.conversation(messages=messages, **OPTIONS) as chat:
        stream = chat.regenerate()
        list(stream)
        assert stream.result.tokens == model.generate(messages, **OPTIONS).tokens
        assert len(chat.messages) == 2


def test_there_must_be_something_to_regenerate(chat: minfer.Conversation) -> None:
    with pytest.raises(ParameterError, match="no answer to generate anew"):
        chat.regenerate()


def test_clear_keeps_the_system_prompt_and_what_is_computed_of_it(
    chat: minfer.Conversation, computed: list[int]
) -> None:
    first = say(chat, "hello")
    chat.clear()
    assert chat.messages == ({"role": "system", "content": "be"},)
    assert chat.n_tokens == 0
    computed.clear()
    again = say(chat, "hello", seed=4)
    assert again.tokens == first.tokens
    assert computed[0] == 1


def test_the_system_prompt_can_be_changed(model: minfer.Model, chat: minfer.Conversation) -> None:
    say(chat, "hello")
    said = chat.messages[1:]
    chat.set_system("other")
    assert (chat.system, chat.messages[1:]) == ("other", said)
    with model.conversation("other", messages=said, **OPTIONS) as same:
        assert same.tokens == chat.tokens
    chat.set_system(None)
    assert (chat.system, chat.messages) == (None, said)
    chat.set_system("back")
    assert chat.system == "back"


def test_the_random_numbers_go_on_from_answer_to_answer(model: minfer.Model) -> None:
    with model.conversation(**OPTIONS) as a, model.conversation(**OPTIONS) as b:
        for text in ("x", "y", "z"):
            assert say(a, text).tokens == say(b, text).tokens
        # Were every answer to start with the seed, these two would be drawn alike.
        a.clear()
        assert say(a, "x").tokens != model.generate([{"role": "user", "content": "x"}], **OPTIONS).tokens
        a.clear()
        a.set_options(seed=4)
        assert say(a, "x").tokens == model.generate([{"role": "user", "content": "x"}], **OPTIONS).tokens


def test_parameters_may_change_between_answers(chat: minfer.Conversation) -> None:
    say(chat, "x", mirostat=2)
    say(chat, "y", temperature=0)
    say(chat, "z", mirostat=1, min_p=0.05)
    chat.set_options(temperature=0)
    assert chat.options["temperature"] == 0
    assert chat.options["max_tokens"] == 9
    first = say(chat, "w", max_tokens=30)
    again = chat.regenerate(max_tokens=30)
    list(again)
    assert again.result.tokens == first.tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"special": True}, "unknown option special"),
        ({"max_tokens": 0}, "max"),
        ({"stop": 5}, "stop must be a string or a list"),
        ({"template_variables": ["x"]}, "template_variables must map names to values"),
        ({"template_variables": {"messages": []}}, "template_variables has messages"),
    ],
)
def test_bad_options_change_nothing(chat: minfer.Conversation, options: dict[str, Any], message: str) -> None:
    say(chat, "hello")
    before = (chat.messages, chat.tokens, chat.options)
    for attempt in (chat.set_options, lambda **given: chat.ask("x", **given), chat.regenerate):
        with pytest.raises(ParameterError, match=message):
            attempt(**options)
    assert (chat.messages, chat.tokens, chat.options) == before


@pytest.mark.parametrize("text", ["", " \n", None, b"x"])
def test_a_message_must_be_text(chat: minfer.Conversation, text: object) -> None:
    with pytest.raises(ParameterError, match="a message must be text"):
        chat.ask(text)  # type: ignore[arg-type]


def test_conversations_of_one_model_do_not_mix(model: minfer.Model) -> None:
    with model.conversation("be", **OPTIONS) as a, model.conversation("be", **OPTIONS) as b:
        streams = [a.ask("hello"), b.ask("hello")]
        for _ in range(3):
            for stream in streams:
                next(stream)
        for stream in streams:
            list(stream)
        assert streams[0].result.tokens == streams[1].result.tokens
        assert say(a, "x", temperature=0).tokens == say(b, "x", temperature=0).tokens


def test_closing_gives_the_pages_back(model: minfer.Model) -> None:
    pool, cache = model._runtime.pool, model._runtime.prefix_cache
    cache.clear()
    n_free = pool.n_free
    with model.conversation(**OPTIONS) as chat:
        say(chat, "hello")
        assert pool.n_free < n_free
    cache.clear()
    assert pool.n_free == n_free
    # It can still be read, and goes on from the start.
    assert len(chat.messages) == 2
    say(chat, "more")
    chat.close()


def test_a_prompt_that_does_not_fit_is_refused_before_any_compute(
    chat: minfer.Conversation, computed: list[int]
) -> None:
    say(chat, "hello")
    messages = chat.messages
    computed.clear()
    with pytest.raises(ContextError, match=r"the message, .* has \d+ tokens, .* context of 256; shorten it") as caught:
        chat.ask("x" * 300)
    assert caught.value.n_positions > 300
    assert caught.value.n_ctx == 256
    assert (chat.messages, computed) == (messages, [])
