"""A long conversation with the real default model: the cache changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minfer
from real_models import default_model

OPTIONS: dict[str, Any] = {"max_tokens": 4, "temperature": 0.8, "seed": 11}
QUESTIONS = ("Hi!", "Why?", "And then?", "Name a colour.", "Say it again.")


def say(chat: minfer.Conversation, turn: int) -> minfer.Generation:
    stream = chat.ask(f"{QUESTIONS[turn % len(QUESTIONS)]} ({turn})")
    for _ in stream:
        pass
    return stream.result


@pytest.mark.default_model
@pytest.mark.parametrize("cache_type", ["f32", "f16", "q8_0"])
def test_thirty_turns(tmp_path: Path, cache_type: str) -> None:
    with minfer.load(default_model(), 1024, cache_type=cache_type) as model:
        with model.conversation("Be brief.", **OPTIONS) as chat:
            for turn in range(15):
                say(chat, turn)
            chat.save(tmp_path / "middle.chat")
            answers = [say(chat, turn).tokens for turn in range(15, 28)]
            chat.save(tmp_path / "late.chat", with_cache=False)
            answers += [say(chat, turn).tokens for turn in range(28, 30)]
            # Everything has been computed once: the prompts, and all but the last token of each answer.
            stats = chat.stats
            assert stats.n_prefill_tokens + stats.n_decode_tokens == chat.n_tokens - 1
            assert stats.n_dropped_tokens == 0
            tokens, messages = chat.tokens, chat.messages
        with model.load_conversation(tmp_path / "middle.chat") as again:
            assert [say(again, turn).tokens for turn in range(15, 30)] == answers
            assert (again.tokens, again.messages) == (tokens, messages)
        with model.load_conversation(tmp_path / "late.chat", reuse=False) as cold:
            results = [say(cold, turn) for turn in range(28, 30)]
            assert [result.tokens for result in results] == answers[-2:]
            assert all(result.stats.n_cached_tokens == 0 for result in results)
            assert (cold.tokens, cold.messages) == (tokens, messages)


@pytest.mark.default_model
def test_a_conversation_outlives_its_context(tmp_path: Path) -> None:
    with minfer.load(default_model(), 256) as model, model.conversation("Be brief.", **OPTIONS) as chat:
        dropped = [say(chat, turn).stats.n_dropped_tokens for turn in range(30)]
        assert sum(n > 0 for n in dropped) >= 3
        assert chat.n_tokens <= 257
        assert chat.n_forgotten > 2 * 15
        assert len(chat.messages) == 61
        assert model.detokenize(chat.tokens).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
        chat.save(tmp_path / "shifted.chat")
        with model.load_conversation(tmp_path / "shifted.chat") as again:
            assert [say(again, turn).tokens for turn in range(5)] == [say(chat, turn).tokens for turn in range(5)]
