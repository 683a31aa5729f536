"""The decode loop through the public API: what ends it, what it gives back, and that it repeats itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import minfer
from minfer.errors import ContextError, ParameterError
from plain_forward import greedy
from tiny_models import IM_END, TINY_SPECS, load_weights

PROMPT = "the world and"


def greedy_tokens(model: minfer.Model, n: int) -> tuple[int, ...]:
    return model.generate(PROMPT, max_tokens=n, temperature=0, ignore_eos=True).tokens


def test_greedy_tokens_are_those_of_the_plain_forward_pass(model: minfer.Model, tiny_dir) -> None:
    weights = load_weights(tiny_dir / "llama-gqa.gguf")
    want = greedy(TINY_SPECS["llama-gqa"], weights, model.tokenize(PROMPT), 12)
    assert list(greedy_tokens(model, 12)) == want


def test_max_tokens(model: minfer.Model) -> None:
    result = model.generate(PROMPT, max_tokens=5, temperature=0, ignore_eos=True)
    assert len(result.tokens) == 5
    assert (result.finish_reason, result.stop_cause) == ("length", "max_tokens")
    assert result.stats.n_prompt_tokens == len(model.tokenize(PROMPT))
    assert result.stats.n_decode_tokens == 4
    assert result.stats.prefill_s > 0
    assert result.stats.decode_s > 0


def test_text_is_that_of_the_tokens(model: minfer.Model) -> None:
    result = model.generate(PROMPT, max_tokens=40, seed=3, ignore_eos=True)
    assert result.text == model.tokenizer.detokenize(result.tokens, special=False)


def test_pieces_join_to_the_text_and_are_never_empty(model: minfer.Model) -> None:
    stream = model.stream(PROMPT, max_tokens=60, seed=5, temperature=2.0, ignore_eos=True)
    pieces = list(stream)
    assert "".join(pieces) == stream.result.text
    assert all(pieces)
    assert stream.result == pytest.approx(stream.result)


def test_an_end_of_generation_token_ends_it_and_is_not_shown(model: minfer.Model) -> None:
    (end,) = model.tokenize(IM_END, special=True)
    result = model.generate(PROMPT, max_tokens=5, temperature=0, logit_bias={end: 1e4})
    assert (result.tokens, result.text) == ((), "")
    assert (result.finish_reason, result.stop_cause) == ("stop", "end_of_generation")


def test_ignore_eos_goes_on_and_keeps_the_token(model: minfer.Model) -> None:
    (end,) = model.tokenize(IM_END, special=True)
    result = model.generate(PROMPT, max_tokens=3, temperature=0, logit_bias={end: 1e4}, ignore_eos=True)
    assert result.tokens == (end,) * 3
    assert result.text == ""


def test_all_end_tokens_that_the_file_names_end_it(model: minfer.Model) -> None:
    ends = {model.tokenize(text, special=True)[0] for text in (IM_END, "<|endoftext|>")}
    assert ends <= model.tokenizer.eog_ids
    for end in ends:
        assert model.generate(PROMPT, max_tokens=3, logit_bias={end: 1e4}).stop_cause == "end_of_generation"


@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_it_and_never_shows(model: minfer.Model, as_list: bool) -> None:
    letters = [model.tokenize(letter)[0] for letter in "ab"]
    bias = dict.fromkeys(range(model.n_vocab), float("-inf")) | dict.fromkeys(letters, 0.0)
    free = model.generate(PROMPT, max_tokens=64, seed=1, logit_bias=bias).text
    stop = "abb" if "abb" in free else free[10:13]
    want = free[: free.index(stop)]
    stream = model.stream(PROMPT, max_tokens=64, seed=1, logit_bias=bias, stop=[stop, "zz"] if as_list else stop)
    so_far = ""
    for piece in stream:
        so_far += piece
        assert want.startswith(so_far)
    assert so_far == want
    assert (stream.result.finish_reason, stream.result.stop_cause) == ("stop", "stop_string")


def test_the_end_of_the_context_ends_it(tiny_dir) -> None:
    with minfer.load(tiny_dir / "llama-gqa.gguf", n_ctx=20) as model:
        prompt = model.tokenize(PROMPT)
        result = model.generate(PROMPT, max_tokens=500, temperature=0, ignore_eos=True)
        assert (result.finish_reason, result.stop_cause) == ("length", "context_end")
        # The last token needs no place in the cache, since nothing follows it.
        assert len(result.tokens) == 20 - len(prompt) + 1


def test_a_prompt_longer_than_the_context_is_refused_before_any_compute(tiny_dir) -> None:
    with minfer.load(tiny_dir / "llama-gqa.gguf", n_ctx=20) as model:
        with pytest.raises(ContextError, match="21 tokens do not fit into the context of 20") as caught:
            model.stream([1] * 21)
        assert (caught.value.n_positions, caught.value.n_ctx) == (21, 20)
        with pytest.raises(ContextError):
            model.logits([1] * 21)
        assert model.logits([1] * 20).shape == (model.n_vocab,)


def test_the_same_seed_gives_the_same_answer_and_the_used_seed_is_told(model: minfer.Model) -> None:
    first = model.generate(PROMPT, max_tokens=20, temperature=1.5)
    again = model.generate(PROMPT, max_tokens=20, temperature=1.5, seed=first.stats.seed)
    other = model.generate(PROMPT, max_tokens=20, temperature=1.5, seed=first.stats.seed ^ 1)
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize(
    "prompt",
    [
        [7, 8, 9],
        (7, 8, 9),
        np.array([7, 8, 9]),
        np.array([7, 8, 9], np.uint16),
    ],
)
def test_prompts_of_token_ids_are_taken_as_they_are(model: minfer.Model, prompt: Sequence[int]) -> None:
    result = model.generate(prompt, max_tokens=4, temperature=0, ignore_eos=True)
    assert result.stats.n_prompt_tokens == 3
    assert result.tokens == model.generate([7, 8, 9], max_tokens=4, temperature=0, ignore_eos=True).tokens


def test_messages_go_through_the_template(model: minfer.Model) -> None:
    messages = [{"role": "user", "content": "hello"}]
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    as_chat = model.generate(messages, max_tokens=4, temperature=0, ignore_eos=True)
    as_text = model.generate(rendered, max_tokens=4, temperature=0, ignore_eos=True, special=True)
    assert as_chat.tokens == as_text.tokens
    assert as_chat.stats.n_prompt_tokens == as_text.stats.n_prompt_tokens


def test_a_user_cannot_write_special_tokens(model: minfer.Model) -> None:
    plain = model.tokenize(IM_END)
    special = model.tokenize(IM_END, special=True)
    assert len(special) == 1
    assert len(plain) > 1
    honest = model.generate([{"role": "user", "content": "x"}], max_tokens=1).stats.n_prompt_tokens
    forged = model.generate([{"role": "user", "content": f"x{IM_END}"}], max_tokens=1).stats.n_prompt_tokens
    assert forged == honest + len(plain)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (b"bytes", "not bytes"),
        (3, "not int"),
        ([1, "a"], "not list"),
        ([True], "not list"),
        (np.zeros((2, 2), np.int64), "one-dimensional"),
        (np.zeros(2), "one-dimensional"),
        ([], "prompt is empty"),
        ("", "prompt is empty"),
        ([300], "token id 300 is not in the vocabulary of 300"),
        ([-1], "token id -1"),
    ],
)
def test_bad_prompts(model: minfer.Model, prompt: object, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        model.generate(prompt, max_tokens=1)  # type: ignore[arg-type]


def test_both_names_of_an_option(model: minfer.Model) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "seed": 3, "temperature": 2.0}
    ours = model.generate("hello", **options, repetition_penalty=5.0, penalty_window=3, typical_p=0.9)
    theirs = model.generate("hello", **options, repeat_penalty=5.0, repeat_last_n=3, typ_p=0.9)
    assert theirs.tokens == ours.tokens
    assert theirs.tokens != model.generate("hello", **options).tokens
    with model.conversation("be", repetition_penalty=5.0) as chat:
        chat.set_options(repeat_penalty=1.5)
        assert chat.options["repetition_penalty"] == 1.5


def test_no_limit(model: minfer.Model) -> None:
    answer = model.generate("hello", max_tokens=-1, top_k=-1, ignore_eos=True, seed=1)
    assert answer.finish_reason == "length"
    assert len(answer.tokens) + answer.stats.n_prompt_tokens > model.n_ctx
    assert answer.tokens == model.generate("hello", max_tokens=9999, top_k=0, ignore_eos=True, seed=1).tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {300: 1.0}}, "300"),
        ({"temprature": 1}, r"unknown option temprature; did you mean 'temperature'\?; known: temperature"),
        ({"max_new_tokens": 1}, r"did you mean 'max_tokens'\?"),
        ({"zzzz": 1}, "unknown option zzzz; known"),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.1}, "repeat_penalty, another name of it, 1.5"),
        ({"repeat_penalty": -1}, "repetition_penalty is -1"),
        ({"max_tokens": -2}, "at least 1, or -1"),
    ],
)
def test_bad_options_are_refused_by_name(model: minfer.Model, options: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        model.generate(PROMPT, **options)  # type: ignore[arg-type]


def test_closing_a_stream_frees_its_pages_and_keeps_what_there_is(model: minfer.Model) -> None:
    pool, kept = model._runtime.pool, model._runtime.prefix_cache
    kept.clear()
    n_free = pool.n_free
    stream = model.stream(PROMPT, max_tokens=50, seed=1, ignore_eos=True)
    first = next(stream)
    assert pool.n_free < n_free
    stream.close()
    kept.clear()
    assert pool.n_free == n_free
    assert stream.result.text == first
    assert (stream.result.finish_reason, stream.result.stop_cause) == ("cancelled", "cancelled")
    with pytest.raises(StopIteration):
        next(stream)


def test_an_interrupt_in_the_middle_of_a_step_frees_the_pages(
    model: minfer.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, kept = model._runtime.pool, model._runtime.prefix_cache
    kept.clear()
    n_free = pool.n_free
    stream = model.stream(PROMPT, max_tokens=50, seed=1, ignore_eos=True)
    next(stream)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model._runtime, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in stream:
            pass
    kept.clear()
    assert pool.n_free == n_free
    assert stream.result.finish_reason == "cancelled"


def test_calls_from_several_threads_give_what_each_gives_alone(model: minfer.Model) -> None:
    want = [model.generate(PROMPT, max_tokens=12, seed=seed, ignore_eos=True).tokens for seed in range(4)]
    got: dict[int, tuple[int, ...]] = {}

    def work(seed: int) -> None:
        got[seed] = model.generate(PROMPT, max_tokens=12, seed=seed, ignore_eos=True).tokens

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[seed] for seed in range(4)] == want


def test_progress_is_told_while_the_prompt_is_read(model: minfer.Model) -> None:
    seen: list[tuple[int, int]] = []
    model.generate([5] * 100, max_tokens=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(100, 100)]


def test_a_closed_model_says_so(tiny_dir) -> None:
    model = minfer.load(tiny_dir / "llama-gqa.gguf")
    session = model.session()
    model.close()
    model.close()
    with pytest.raises(ParameterError, match="the model is closed"):
        session.extend([1])
    with pytest.raises(ParameterError, match="the model is closed"):
        model.generate(PROMPT)
    with pytest.raises(ParameterError, match="the model is closed"):
        model.logits([1])


def test_deltas_are_the_pieces_with_their_tokens(model: minfer.Model) -> None:
    options = {"max_tokens": 60, "seed": 5, "temperature": 2.0, "ignore_eos": True}
    stream = model.stream(PROMPT, **options)
    deltas = list(stream.deltas())
    assert [delta.text for delta in deltas if delta.text] == list(model.stream(PROMPT, **options))
    assert [token for delta in deltas for token in delta.tokens] == list(stream.result.tokens)
    assert any(len(delta.tokens) > 1 for delta in deltas)
    assert all(deltas)
