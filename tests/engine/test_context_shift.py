"""The end of the context: an answer stops there, or the oldest turns make room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import minfer
from chat_templates import INST, NUMBERED
from edited_gguf import edited
from minfer.errors import ContextError, ParameterError
from talk import say
from tiny_load import tiny_path
from tiny_models import IM_END, IM_START, MERGES

N_CTX = 120
SPECIAL = range(256 + len(MERGES), 300)
OPTIONS: dict[str, Any] = {
    "max_tokens": 6,
    "temperature": 1.2,
    "seed": 4,
    "logit_bias": dict.fromkeys(SPECIAL, float("-inf")),  # so that answers do not end, and have nothing but text
}
TURN = 25
"""about the tokens of a turn with OPTIONS"""


@pytest.fixture(scope="module")
def small(tiny_dir: Path) -> Iterator[minfer.Model]:
    with minfer.load(tiny_path(tiny_dir), N_CTX) as model:
        yield model


def text_of(model: minfer.Model, messages: Sequence[Any]) -> str:
    """The chat template's text, up to the last answer."""
    return model.tokenizer.apply_template(messages, add_generation_prompt=False).removesuffix(f"{IM_END}\n")


def visible(chat: minfer.Conversation) -> list[Any]:
    return [chat.messages[0], *chat.messages[1 + chat.n_forgotten :]]


def check_tokens(model: minfer.Model, chat: minfer.Conversation) -> None:
    """The context holds the system prompt and the turns that are not forgotten, and the cache what was computed."""
    assert model.tokenizer.detokenize(chat.tokens) == text_of(model, visible(chat))
    assert chat._session is not None
    assert chat._session.tokens == chat.tokens[:-1]
    assert chat.n_tokens <= model.n_ctx + 1


def test_without_shift_an_answer_ends_with_the_context_and_a_further_question_is_refused(small: minfer.Model) -> None:
    with small.conversation("be", context_shift=False, **OPTIONS) as chat:
        for turn in range(3):
            say(chat, f"t{turn}")
        result = say(chat, "last", max_tokens=500)
        assert (result.finish_reason, result.stop_cause) == ("length", "context_end")
        assert chat.n_tokens == N_CTX + 1
        assert chat.stats.n_dropped_tokens == 0
        before = chat.messages, chat.tokens
        with pytest.raises(ContextError, match=r"the conversation has \d+ tokens, .* context of 120; start") as caught:
            chat.ask("more")
        assert caught.value.n_positions > N_CTX
        assert caught.value.n_ctx == N_CTX
        assert (chat.messages, chat.tokens) == before


def test_the_oldest_turns_go_when_a_question_needs_room(small: minfer.Model, computed: list[int]) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        answers = []
        while chat.n_tokens + TURN <= N_CTX:
            answers.append(say(chat, f"t{len(answers)}"))
        n_before = chat.n_tokens
        computed.clear()
        result = say(chat, "a longer question")
        assert 0 < chat.n_forgotten < 2 * len(answers)
        n_gone = result.stats.n_dropped_tokens
        assert n_gone >= chat.n_forgotten // 2 * 20
        check_tokens(small, chat)
        # All but the question is still there.
        assert computed[0] == chat.n_tokens - len(result.tokens) - (n_before - 1 - n_gone)
        # Nothing is lost to the user, and the answers that are left keep their tokens.
        assert len(chat.messages) == 1 + 2 * (len(answers) + 1)
        left = answers[chat.n_forgotten // 2 :]
        assert left
        for answer in left:
            start = [chat.tokens[i : i + 6] for i in range(chat.n_tokens)].index(answer.tokens)
            assert start < n_before - n_gone
        assert chat.stats.n_dropped_tokens == n_gone


def test_room_is_made_for_more_than_one_turn(small: minfer.Model) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        dropped = []
        for turn in range(24):
            dropped.append(say(chat, f"t{turn}").stats.n_dropped_tokens)
            check_tokens(small, chat)
        assert 4 <= sum(n > 0 for n in dropped) <= 12
        assert chat.stats.n_dropped_tokens == sum(dropped)
        assert chat.n_forgotten > 2 * 18


def test_turns_go_while_an_answer_is_generated(small: minfer.Model) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        for turn in range(2):
            say(chat, f"t{turn}")
        result = say(chat, "long", max_tokens=80)
        assert (result.finish_reason, len(result.tokens)) == ("length", 80)
        assert result.stop_cause == "max_tokens"
        assert result.stats.n_dropped_tokens > 0
        assert chat.n_forgotten == 4
        check_tokens(small, chat)
        assert chat.tokens[-80:] == result.tokens
        say(chat, "more")
        check_tokens(small, chat)


def test_the_last_turn_stays_and_so_an_answer_ends_that_fills_the_context(small: minfer.Model) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "x")
        result = say(chat, "long", max_tokens=500)
        assert (result.finish_reason, result.stop_cause) == ("length", "context_end")
        assert chat.n_tokens == N_CTX + 1
        assert chat.n_forgotten == 2
        # It goes on, since that turn may go now.
        assert say(chat, "more").stats.n_dropped_tokens > 90
        check_tokens(small, chat)


def test_a_question_longer_than_the_context_is_refused_and_changes_nothing(
    small: minfer.Model, computed: list[int]
) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        say(chat, "x")
        before = chat.messages, chat.tokens, chat.n_forgotten
        computed.clear()
        with pytest.raises(ContextError, match=r"the message, .* context of 120; shorten it"):
            chat.ask("y" * N_CTX)
        assert (chat.messages, chat.tokens, chat.n_forgotten, computed) == (*before, [])


def test_shifting_can_be_switched(small: minfer.Model) -> None:
    with small.conversation("be", context_shift=False, **OPTIONS) as chat:
        say(chat, "long", max_tokens=500)
        with pytest.raises(ContextError):
            chat.ask("more")
        chat.context_shift = True
        assert say(chat, "more").stats.n_dropped_tokens > 0


def test_undo_and_regenerate_after_a_shift(small: minfer.Model) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        for turn in range(8):
            say(chat, f"t{turn}")
        assert chat.n_forgotten > 0
        list(chat.regenerate())
        check_tokens(small, chat)
        n_forgotten = chat.n_forgotten
        chat.undo()
        assert chat.n_forgotten == n_forgotten
        say(chat, "other")
        check_tokens(small, chat)
        while len(chat.messages) > 1 + n_forgotten:
            chat.undo()
        # Nothing else is left, so what was forgotten is remembered, as far as it fits.
        say(chat, "again")
        check_tokens(small, chat)
        assert chat.n_forgotten < n_forgotten
        assert chat.n_tokens > 2 * TURN


@pytest.mark.parametrize("template", [INST, NUMBERED])
def test_templates_whose_turns_are_no_range_of_tokens_are_computed_anew(tiny_dir: Path, template: str) -> None:
    source = edited(tiny_path(tiny_dir), tiny_dir / "shifting.gguf", {"tokenizer.chat_template": template})
    with minfer.load(source, N_CTX) as model, model.conversation("be", **OPTIONS) as chat:
        for turn in range(9):
            say(chat, f"turn {turn}")
            tokens = chat.tokens
            assert chat._session is not None
            assert chat._session.tokens == tokens[:-1]
        result = say(chat, "long", max_tokens=70)
        assert len(result.tokens) == 70
        assert chat._session.tokens == chat.tokens[:-1]
        assert chat.n_forgotten > 8
        prompt = model.tokenizer.apply_template(visible(chat)[:-1])
        assert model.tokenizer.detokenize(chat.tokens[:-70]) == prompt


def test_raw_text_loses_its_older_half_again_and_again(small: minfer.Model) -> None:
    options = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
    whole = small.generate("hello", context_shift=True, **options)
    assert (len(whole.tokens), whole.stop_cause) == (400, "max_tokens")
    n_steps = 400 - N_CTX
    assert whole.stats.n_dropped_tokens >= n_steps
    assert whole.stats.n_dropped_tokens % ((N_CTX - 4) // 2) == 0
    # Until the context is full, it is the same answer.
    short = small.generate("hello", **options)
    assert short.stop_cause == "context_end"
    assert whole.tokens[: len(short.tokens)] == short.tokens


@pytest.mark.parametrize("n_ctx", [17, 5])
def test_raw_text_keeps_its_first_tokens(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, n_ctx: int) -> None:
    seen = []
    drop = minfer.Session.drop

    def watched(self: minfer.Session, start: int, end: int) -> None:
        before = self.tokens
        drop(self, start, end)
        seen.append((before, self.tokens))

    monkeypatch.setattr(minfer.Session, "drop", watched)
    with minfer.load(tiny_path(tiny_dir), n_ctx) as model:
        result = model.generate([5, 6, 7], context_shift=True, max_tokens=40, ignore_eos=True, seed=1)
    if n_ctx == 5:
        assert (result.stop_cause, seen) == ("context_end", [])
        return
    assert len(result.tokens) == 40
    everything = (5, 6, 7, *result.tokens)
    n_gone = 0
    for before, after in seen:
        n_gone += 6
        assert before[:4] == after[:4] == everything[:4]
        assert after[4:] == before[10:]
    assert len(seen) > 2
    assert result.stats.n_dropped_tokens == n_gone


def test_messages_to_generate_may_lose_turns(small: minfer.Model) -> None:
    messages = [{"role": "system", "content": "be"}]
    for turn in range(8):
        messages += [{"role": "user", "content": f"t{turn}"}, {"role": "assistant", "content": "yes"}]
    messages.append({"role": "user", "content": "last"})
    with pytest.raises(ContextError):
        small.generate(messages, **OPTIONS)
    result = small.generate(messages, context_shift=True, **OPTIONS)
    n_left = result.stats.n_prompt_tokens
    assert result.stats.n_dropped_tokens == len(small.tokenizer.encode_chat(messages)) - n_left
    left = next(
        messages[:1] + messages[start:]
        for start in range(1, len(messages), 2)
        if len(small.tokenizer.encode_chat(messages[:1] + messages[start:])) == n_left
    )
    assert result.tokens == small.generate(left, **OPTIONS).tokens
    longer = small.generate(messages, context_shift=True, **OPTIONS | {"max_tokens": 60})
    assert len(longer.tokens) == 60
    assert longer.stats.n_dropped_tokens > result.stats.n_dropped_tokens


def test_samples_and_shifting_exclude_each_other(small: minfer.Model) -> None:
    with pytest.raises(ParameterError, match="context_shift does not go with samples"):
        small.samples("hello", 2, context_shift=True)


def test_the_system_prompt_has_its_place_in_the_shifted_context(small: minfer.Model) -> None:
    with small.conversation("be", **OPTIONS) as chat:
        for turn in range(8):
            say(chat, f"t{turn}")
        assert small.tokenizer.detokenize(chat.tokens).startswith(f"{IM_START}system\nbe{IM_END}\n{IM_START}user\nt")
        chat.clear()
        assert (chat.n_forgotten, chat.n_tokens) == (0, 0)
