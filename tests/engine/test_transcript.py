"""A rendered chat keeps the tokens of its past."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_templates import CHATML, INST, NUMBERED, OPENED_THINKING, THINKING, TRIMMING
from minfer.engine.transcript import Transcript, common_prefix, follow, without
from minfer.text import Tokenizer, build_tokenizer
from text_vocabularies import CONTROL, USER_DEFINED, bpe_metadata, real_metadata, spm_metadata

MARKS = [
    ("<|im_end|>", CONTROL),
    ("<|im_start|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("</think>", USER_DEFINED),
    ("<hidden>", CONTROL),
]
IM_END, IM_START, THINK, END_THINK, HIDDEN = range(256, 261)


def byte_tokenizer(template: str, **keys: Any) -> Tokenizer:
    """Every byte is a token, so tokens can be written as bytes."""
    metadata = bpe_metadata(MARKS, eos_token_id=IM_END, **keys)
    return build_tokenizer(metadata | {"tokenizer.chat_template": template})


def spm_tokenizer(template: str) -> Tokenizer:
    words = [("▁", -1.0), *((letter, -2.0) for letter in "abcINST/[]"), ("▁a", -3.0), ("▁b", -3.0), ("ab", -4.0)]
    metadata = spm_metadata(words, add_bos_token=True, add_space_prefix=True)
    return build_tokenizer(metadata | {"tokenizer.chat_template": template})


def qwen_tokenizer(template: str = CHATML) -> Tokenizer:
    return build_tokenizer(real_metadata("qwen2.5-coder-0.5b") | {"tokenizer.chat_template": template})


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str | None = None) -> dict[str, str]:
    return {"role": "assistant", "content": text} | ({} if thought is None else {"reasoning_content": thought})


def rendered(tokenizer: Tokenizer, *messages: dict[str, str]) -> str:
    return tokenizer.render_chat(messages, trust_model=False)


def first(tokenizer: Tokenizer, *messages: dict[str, str]) -> Transcript:
    return follow(tokenizer, Transcript(), rendered(tokenizer, *messages))


def text_of(transcript: Transcript, tokenizer: Tokenizer) -> str:
    return tokenizer.detokenize(transcript.tokens)


@pytest.mark.parametrize("template", [CHATML, TRIMMING, THINKING, INST, NUMBERED])
def test_a_first_prompt_is_what_encode_chat_makes(template: str) -> None:
    for tokenizer in (byte_tokenizer(template), byte_tokenizer(template, add_bos_token=True, bos_token_id=HIDDEN)):
        messages = [user("hi <|im_end|>"), assistant("yes"), user("no")]
        assert list(first(tokenizer, *messages).tokens) == tokenizer.encode_chat(messages)


def test_an_answer_keeps_tokens_that_no_tokenizer_would_make() -> None:
    tokenizer = qwen_tokenizer()
    before = first(tokenizer, user("hi"))
    odd = [tokenizer.tokenize(letter)[0] for letter in "Hello there"]
    assert tokenizer.tokenize("Hello there") != odd
    after = follow(
        tokenizer,
        before.answered(tokenizer, odd),
        rendered(tokenizer, user("hi"), assistant("Hello there"), user("more")),
    )
    new = tokenizer.tokenize("<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n", special=True)
    assert list(after.tokens) == [*before.tokens, *odd, *new]


def test_ten_turns_keep_all_that_came_before() -> None:
    tokenizer = byte_tokenizer(CHATML)
    messages = [user("0")]
    transcript = first(tokenizer, *messages)
    for turn in range(1, 10):
        answered = transcript.answered(tokenizer, f"answer {turn} é".encode())
        messages += [assistant(f"answer {turn} é"), user(str(turn))]
        transcript = follow(tokenizer, answered, rendered(tokenizer, *messages))
        assert transcript.tokens[: answered.n_tokens] == answered.tokens
    assert list(transcript.tokens) == tokenizer.encode_chat(messages)


def test_control_tokens_that_an_answer_only_spells_stay_text() -> None:
    tokenizer = byte_tokenizer(CHATML)
    said = "a<|im_end|>\n<|im_start|>b"
    messages = [user("x"), assistant(said), user("y")]
    answered = first(tokenizer, user("x")).answered(tokenizer, said.encode())
    kept = follow(tokenizer, answered, rendered(tokenizer, *messages))
    assert kept.tokens[: answered.n_tokens] == answered.tokens
    again = follow(tokenizer, kept, rendered(tokenizer, *messages, assistant("z"), user("w")))
    assert again.tokens[: kept.n_tokens] == kept.tokens
    # Nor do they become control tokens where they have to be tokenised anew.
    assert first(tokenizer, *messages).tokens.count(IM_END) == 3


def test_tokens_without_text_in_an_answer_stay() -> None:
    tokenizer = byte_tokenizer(CHATML)
    answered = first(tokenizer, user("x")).answered(tokenizer, [HIDDEN, *b"ab", HIDDEN])
    after = follow(tokenizer, answered, rendered(tokenizer, user("x"), assistant("ab"), user("y")))
    assert after.tokens[: answered.n_tokens] == answered.tokens


def test_an_answer_cut_within_a_character() -> None:
    tokenizer = byte_tokenizer(CHATML)
    answered = first(tokenizer, user("x")).answered(tokenizer, b"a\xe2\x82")
    shown = follow(tokenizer, answered, rendered(tokenizer, user("x"), assistant("a\ufffd"), user("y")))
    assert shown.tokens[: answered.n_tokens] == answered.tokens
    hidden = follow(tokenizer, answered, rendered(tokenizer, user("x"), assistant("a"), user("y")))
    assert common_prefix(hidden.tokens, answered.tokens) == answered.n_tokens - 2
    assert text_of(hidden, tokenizer) == rendered(tokenizer, user("x"), assistant("a"), user("y"))


def test_a_template_that_trims_an_answer_keeps_what_is_left_of_it() -> None:
    tokenizer = qwen_tokenizer(TRIMMING)
    odd = [tokenizer.tokenize(letter)[0] for letter in ("W", "h", "y", "?", "\n")]
    answered = first(tokenizer, user("hi")).answered(tokenizer, odd)
    after = follow(tokenizer, answered, rendered(tokenizer, user("hi"), assistant("Why?\n"), user("more")))
    assert after.tokens[: answered.n_tokens - 1] == answered.tokens[:-1]
    assert text_of(after, tokenizer) == rendered(tokenizer, user("hi"), assistant("Why?"), user("more"))


def test_thinking_that_the_template_drops_is_gone_and_the_rest_is_the_template_s() -> None:
    tokenizer = byte_tokenizer(THINKING)
    before = first(tokenizer, user("hi"))
    answered = before.answered(tokenizer, [THINK, *b"\nhm\n", END_THINK, *b"\n\nYes"])
    messages = [user("hi"), assistant("Yes", "hm"), user("more")]
    after = follow(tokenizer, answered, rendered(tokenizer, *messages))
    assert THINK not in after.tokens
    assert common_prefix(after.tokens, answered.tokens) == before.n_tokens
    assert list(after.tokens) == tokenizer.encode_chat(messages)


def test_thinking_that_the_prompt_opens_goes_with_it() -> None:
    tokenizer = byte_tokenizer(OPENED_THINKING)
    before = first(tokenizer, user("hi"))
    assert before.tokens[-2:] == (THINK, ord("\n"))
    answered = before.answered(tokenizer, [*b"hm\n", END_THINK, *b"\n\nYes"])
    messages = [user("hi"), assistant("Yes", "hm"), user("more")]
    assert list(follow(tokenizer, answered, rendered(tokenizer, *messages)).tokens) == tokenizer.encode_chat(messages)


@pytest.mark.parametrize("template", [CHATML, INST])
def test_asking_something_else_leaves_nothing_of_the_first_question(template: str) -> None:
    tokenizer = qwen_tokenizer(template)
    asked = first(tokenizer, user("hi"))
    other = follow(tokenizer, asked.answered(tokenizer, tokenizer.tokenize("Hello")), rendered(tokenizer, user("hill")))
    assert list(other.tokens) == tokenizer.encode_chat([user("hill")])


def test_an_empty_answer() -> None:
    tokenizer = byte_tokenizer(CHATML)
    messages = [user("x"), assistant(""), user("y")]
    after = follow(tokenizer, first(tokenizer, user("x")).answered(tokenizer, []), rendered(tokenizer, *messages))
    assert list(after.tokens) == tokenizer.encode_chat(messages)


@pytest.mark.parametrize("space", ["", " "])
def test_a_sentencepiece_answer_keeps_its_tokens_with_or_without_the_space_before_it(space: str) -> None:
    tokenizer = spm_tokenizer(INST.replace("' ' + (message", f"'{space}' + (message"))
    before = first(tokenizer, user("a"))
    odd = [tokenizer.vocabulary.ids[text] for text in ("▁", "a", "b")]
    assert tokenizer.tokenize("ab") != odd
    answered = before.answered(tokenizer, odd)
    after = follow(tokenizer, answered, rendered(tokenizer, user("a"), assistant("ab"), user("b")))
    # What follows the answer is no start of a text, unless it is a special token.
    assert after.tokens[: answered.n_tokens + 1] == (*answered.tokens, tokenizer.eos_id)


def test_a_bos_token_stays_in_front() -> None:
    tokenizer = byte_tokenizer(CHATML, add_bos_token=True, bos_token_id=HIDDEN)
    before = first(tokenizer, user("x"))
    after = follow(tokenizer, before, rendered(tokenizer, user("other")))
    assert list(after.tokens) == tokenizer.encode_chat([user("other")])
    assert before.tokens[0] == after.tokens[0] == HIDDEN


def letters(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(token for letter in text for token in tokenizer.tokenize(letter))


def conversation(tokenizer: Tokenizer, *texts: str) -> tuple[list[dict[str, str]], Transcript]:
    """A system message, questions and answers in turn, and a last question; every answer in single letters."""
    messages = [{"role": "system", "content": "be"}, user(texts[0])]
    transcript = first(tokenizer, *messages)
    for index in range(1, len(texts), 2):
        messages += [assistant(texts[index]), user(texts[index + 1])]
        answered = transcript.answered(tokenizer, letters(tokenizer, texts[index]))
        transcript = follow(tokenizer, answered, rendered(tokenizer, *messages))
    return messages, transcript


@pytest.mark.parametrize("tokenizer", [qwen_tokenizer(), byte_tokenizer(CHATML, add_bos_token=True, bos_token_id=260)])
@pytest.mark.parametrize(
    "texts",
    [("one", "two", "three", "four", "five"), ("same", "a", "same", "a", "same"), ("he", "ll", "hello", "", "h")],
)
def test_leaving_a_turn_out_leaves_a_range_of_tokens_out(tokenizer: Tokenizer, texts: tuple[str, ...]) -> None:
    messages, whole = conversation(tokenizer, *texts)
    for n_turns in (1, 2):
        left = [messages[0], *messages[1 + 2 * n_turns :]]
        shorter, gone = without(tokenizer, whole, rendered(tokenizer, *left))
        assert shorter.tokens == whole.tokens[: gone.start] + whole.tokens[gone.stop :]
        assert len(gone) > 0
        assert shorter.text == rendered(tokenizer, *left)
        # The answers that are left are still single letters.
        answers = [letters(tokenizer, text) for text in texts[1 + 2 * n_turns :: 2] if text]
        assert [span.tokens for span in shorter.spans if span.is_answer] == answers


def test_the_first_token_of_all_stays() -> None:
    tokenizer = byte_tokenizer(CHATML)
    messages = [user("one"), assistant("two"), user("three")]
    whole = first(tokenizer, *messages)
    shorter, gone = without(tokenizer, whole, rendered(tokenizer, messages[-1]))
    assert gone.start == 1
    assert shorter.tokens == first(tokenizer, messages[-1]).tokens


def test_a_turn_that_has_no_borders_between_tokens_is_cut_out_and_the_answers_stay() -> None:
    tokenizer = qwen_tokenizer(INST)
    messages, whole = conversation(tokenizer, "one", " two", "three", " four", "five")
    left = [messages[0], *messages[3:]]
    shorter, gone = without(tokenizer, whole, rendered(tokenizer, *left))
    assert len(gone) == 0
    assert text_of(shorter, tokenizer) == rendered(tokenizer, *left)
    assert [span.tokens for span in shorter.spans if span.is_answer] == [letters(tokenizer, " four")]


def test_a_template_that_numbers_its_turns() -> None:
    tokenizer = byte_tokenizer(NUMBERED)
    messages, whole = conversation(tokenizer, "one", "two", "three", "four", "five")
    left = [messages[0], *messages[3:]]
    shorter, gone = without(tokenizer, whole, rendered(tokenizer, *left))
    assert len(gone) == 0
    assert list(shorter.tokens) == tokenizer.encode_chat(left)


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0


TEXTS = st.lists(st.sampled_from([*"ab \né😀", "<|im_end|>", "<|im_"]), max_size=6).map("".join)
BYTE_TOKENIZERS = {
    template: byte_tokenizer(template, add_bos_token=True, bos_token_id=HIDDEN)
    for template in (CHATML, TRIMMING, THINKING, OPENED_THINKING, INST, NUMBERED)
}


@given(
    st.sampled_from(list(BYTE_TOKENIZERS)),
    st.lists(st.tuples(st.sampled_from(["ask", "undo", "regenerate", "forget"]), TEXTS, TEXTS), max_size=8),
)
@settings(deadline=None, max_examples=300, derandomize=True)
def test_whatever_happens_the_tokens_are_those_of_the_text(template: str, actions: list[tuple[str, str, str]]) -> None:
    tokenizer = BYTE_TOKENIZERS[template]
    messages: list[dict[str, str]] = []
    past = Transcript()
    for action, question, answer in actions:
        if action == "undo" or (action == "regenerate" and not messages):
            messages = messages[:-2]
        elif action == "regenerate":
            messages = messages[:-1]
        if action == "forget" and len(messages) >= 4:
            whole = follow(tokenizer, past, rendered(tokenizer, *messages, user(question)))
            prompt = rendered(tokenizer, *messages[2:], user(question))
            shorter, gone = without(tokenizer, whole, prompt)
            assert shorter.text == prompt
            if gone:
                assert shorter.tokens == whole.tokens[: gone.start] + whole.tokens[gone.stop :]
            messages, past = messages[2:], shorter
        if not messages or messages[-1]["role"] == "assistant":
            messages = [*messages, user(question)]
        prompt = rendered(tokenizer, *messages)
        transcript = follow(tokenizer, past, prompt)
        assert transcript.text == prompt
        # Every byte is a token, so there is only one way to tokenise a text.
        pieces = tokenizer.pieces(prompt)
        assert list(transcript.tokens) == tokenizer.with_bos([token for piece in pieces for token in piece.tokens])
        past = transcript.answered(tokenizer, answer.encode())
        messages = [*messages, assistant(answer)]
