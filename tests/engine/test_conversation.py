"""Conversations: what is computed, what is kept, and what they go back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minfer
from chat_templates import INST, OPENED_THINKING, THINKING
from edited_gguf import edited
from minfer.engine.runtime import Runtime
from minfer.engine.samplers import Samplers
from minfer.errors import ContextError, ParameterError, TemplateError
from minfer.sampling import Sampler, SamplingParams
from tiny_load import tiny_path
from tiny_models import IM_END, IM_START, TINY_SPECS, write_tiny

OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 1.2, "seed": 4}


@pytest.fixture
def chat(model: minfer.Model) -> Iterator[minfer.Conversation]:
    with model.conversation("be", **OPTIONS) as conversation:
        yield conversation


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step computes."""
    steps: list[int] = []
    step = Runtime.step

    def counted(self: Runtime, parts: Sequence[Any]) -> Any:
        steps.append(sum(len(part.tokens) for part in parts))
        return step(self, parts)

    monkeypatch.setattr(Runtime, "step", counted)
    return steps


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the model's samplers say given tokens, whatever the logits are."""

    def script(*answers: Sequence[int]) -> None:
        left = [list(answer) for answer in answers]

        class Script(Sampler):
            def __init__(self, params: SamplingParams, n_vocab: int) -> None:
                super().__init__(params, n_vocab)
                self._tokens: list[int] | None = None

            def sample(self, *_: object) -> int:
                if self._tokens is None:
                    self._tokens = left.pop(0)
                return self._tokens.pop(0)

        monkeypatch.setattr(Samplers, "make", lambda self, params: Script(params, self._tokenizer.n_vocab))

    return script


def with_template(tiny_dir: Path, template: str, name: str) -> Path:
    target = tiny_dir / f"{name}.gguf"
    source = tiny_path(tiny_dir)
    return target if target.exists() else edited(source, target, {"tokenizer.chat_template": template})


def long_path(tiny_dir: Path, name: str) -> Path:
    """A tiny model with room for a long conversation."""
    target = tiny_dir / f"{name}-long.gguf"
    return target if target.exists() else write_tiny(target, replace(TINY_SPECS[name], n_ctx=1024))


def say(conversation: minfer.Conversation, text: str, **options: Any) -> minfer.Generation:
    stream = conversation.ask(text, **options)
    for _ in stream:
        pass
    return stream.result


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
