from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.errors import TokenizerError
from minfer.text import build_tokenizer
from text_vocabularies import NORMAL, bpe_metadata, real_tokenizer, spelled

MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")


# Bytes that SmolLM2's vocabulary has no token for, but UTF-8 has a use for.
MISSING = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}


@given(text=st.text(), special=st.booleans(), model=st.sampled_from(MODELS))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_text_survives(text: str, special: bool, model: str) -> None:
    tokenizer = real_tokenizer(model)
    if model == "smollm2-135m" and MISSING.intersection(text.encode()):
        with pytest.raises(TokenizerError, match="has no token for the byte 0x"):
            tokenizer.tokenize(text, special=special)
    else:
        assert tokenizer.detokenize(tokenizer.tokenize(text, special=special)) == text


CHUNKS = [
    "hello",
    " world",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "\n\n",
    "  ",
    "é",
    "漢字",
    "🙂",
    "12",
    "'s",
    "<|",
]


@given(chunks=st.lists(st.sampled_from(CHUNKS)), model=st.sampled_from(MODELS))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_text_with_special_tokens_survives_and_they_differ_only_when_parsed(chunks: list[str], model: str) -> None:
    tokenizer = real_tokenizer(model)
    text = "".join(chunks)
    plain, parsed = tokenizer.tokenize(text), tokenizer.tokenize(text, special=True)
    assert tokenizer.detokenize(plain) == tokenizer.detokenize(parsed) == text
    control = {tokenizer.tokenize(mark, special=True)[0] for mark in ("<|im_end|>", "<|endoftext|>")}
    assert not control & set(plain)
    assert sum(token_id in control for token_id in parsed) == text.count("<|im_end|>") + text.count("<|endoftext|>")
    without = text.replace("<|im_end|>", "").replace("<|endoftext|>", "")
    assert tokenizer.detokenize(parsed, special=False) == without


def test_earlier_merges_come_first_and_the_leftmost_of_equals() -> None:
    tokenizer = build_tokenizer(bpe_metadata(merges=["b c", "a b", "a a"]))
    pieces = {text: [tokenizer.token_text(i) for i in tokenizer.tokenize(text)] for text in ("abc", "ab", "aaa")}
    assert pieces == {"abc": ["a", "bc"], "ab": ["ab"], "aaa": ["aa", "a"]}


def test_a_pair_given_twice_keeps_its_first_rank() -> None:
    metadata = bpe_metadata(merges=["b c", "a b"])
    metadata["tokenizer.ggml.merges"] = ["b c", "a b", "b c"]
    tokenizer = build_tokenizer(metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.tokenize("abc")] == ["a", "bc"]


def test_a_byte_without_a_token_is_an_error_and_not_dropped() -> None:
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.tokens"][0xE9] = "unused"
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.detokenize(tokenizer.tokenize("plain")) == "plain"
    with pytest.raises(TokenizerError, match=r"byte 0xE9;.*U\+9F4D"):
        tokenizer.tokenize("a\u9f4d")  # E9 BD 8D


@pytest.mark.parametrize(
    ("merges", "problem"),
    [
        (["a z\u0100\u0100"], "does not fit tokenizer.ggml.tokens"),
        (["ab"], "merges has 'ab', which is not two parts"),
        (["a b", " b"], "merges has ' b', which is not two parts"),
    ],
)
def test_bad_merges_are_refused(merges: list[str], problem: str) -> None:
    metadata = bpe_metadata(merges=["a b"])
    metadata["tokenizer.ggml.merges"] = merges
    with pytest.raises(TokenizerError, match=problem):
        build_tokenizer(metadata)


def test_a_normal_token_outside_of_the_alphabet_stands_for_itself() -> None:
    tokenizer = build_tokenizer(bpe_metadata([("漢字", NORMAL), (spelled("漢字"), NORMAL)]))
    assert tokenizer.token_bytes(256) == tokenizer.token_bytes(257) == "漢字".encode()
