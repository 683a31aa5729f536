from __future__ import annotations

from typing import Any

import pytest

from minfer.errors import MinferWarning, UnsupportedError
from minfer.text import PRE_TOKENIZERS, Tokenizer, build_tokenizer
from text_vocabularies import NORMAL, bpe_metadata, read_json

# llama.cpp's ids for a vocabulary that merges every pair of bytes in the texts, so that most ends of words show in the
# ids. `words` are tokens that no merge makes.
GOLDEN = read_json("text/pre-tokenizers.json")


def build(name: str) -> Tokenizer:
    return build_tokenizer(
        bpe_metadata([(word, NORMAL) for word in GOLDEN["words"]], GOLDEN["merges"], pre=name, bos_token_id=0)
    )


CASES = [pytest.param(name, group, id=name) for group in GOLDEN["groups"] for name in group["names"]]


def test_the_table_holds_the_names_that_were_asked_of_llama_cpp() -> None:
    assert set(PRE_TOKENIZERS) == {name for group in GOLDEN["groups"] for name in group["names"]}


@pytest.mark.parametrize(("name", "group"), CASES)
def test_words_are_those_of_llama_cpp(name: str, group: dict[str, Any]) -> None:
    tokenizer = build(name)
    assert tokenizer.add_bos == group["add_bos"]
    for text, ids in zip(GOLDEN["texts"], group["ids"], strict=True):
        found = tokenizer.tokenize(text)
        assert found == ids, f"{name} cuts {text!r} otherwise"
        assert tokenizer.detokenize(found) == text


def test_a_file_that_names_none_has_the_default_and_says_so() -> None:
    metadata = bpe_metadata([], GOLDEN["merges"])
    del metadata["tokenizer.ggml.pre"]
    text = "12345!!x"
    with pytest.warns(
        MinferWarning, match=r"tokenizer\.ggml\.pre is missing.*'default' is used.*convert the model anew"
    ):
        ids = build_tokenizer(metadata).tokenize(text)
    assert ids == build_tokenizer(bpe_metadata([], GOLDEN["merges"], pre="default")).tokenize(text)
    assert ids != build_tokenizer(bpe_metadata([], GOLDEN["merges"], pre="smollm")).tokenize(text)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'qwen9'.*tokenizer\.ggml\.pre.*llama-bpe.*smollm") as raised:
        build_tokenizer(bpe_metadata(pre="qwen9"))
    assert raised.value.supported == tuple(sorted(PRE_TOKENIZERS))


def test_a_word_that_is_a_token_is_not_merged_where_merges_are_ignored() -> None:
    extra = [("Hello", NORMAL)]
    merging = build_tokenizer(bpe_metadata(extra, ["H e", "l l"], pre="dbrx"))
    ignoring = build_tokenizer(bpe_metadata(extra, ["H e", "l l"], pre="llama-bpe", bos_token_id=0))
    assert [merging.token_text(token_id) for token_id in merging.tokenize("Hello")] == ["He", "ll", "o"]
    assert [ignoring.token_text(token_id) for token_id in ignoring.tokenize("Hello")] == ["Hello"]
    assert [ignoring.token_text(token_id) for token_id in ignoring.tokenize("Hellos")] == ["He", "ll", "o", "s"]
