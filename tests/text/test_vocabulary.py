from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minfer.errors import MinferError, TokenizerError, UnsupportedError
from minfer.gguf import open_gguf, write_gguf
from minfer.text import TokenizerModel, TokenType, build_tokenizer
from text_vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    bpe_metadata,
    read_json,
    real_metadata,
    spm_metadata,
)

END_CASES = read_json("text/end-tokens.json")["cases"]


@pytest.mark.parametrize("case", END_CASES, ids=[case["name"] for case in END_CASES])
def test_the_tokens_that_end_a_generation_are_those_of_llama_cpp(case: dict[str, Any]) -> None:
    extra = [(text, kind) for text, kind in case["extra"]]
    tokenizer = build_tokenizer(bpe_metadata(extra, **case["metadata"]))
    assert sorted(tokenizer.eog_ids) == case["ends"]
    # A token's type, which the text of the token can overrule, decides when it is parsed.
    text = "x".join(text for text, _ in extra)
    assert tokenizer.tokenize(text) == case["plain"]
    assert tokenizer.tokenize(text, special=True) == case["special"]


def test_a_file_without_types_has_normal_tokens() -> None:
    metadata = bpe_metadata(merges=["a b"])
    del metadata["tokenizer.ggml.token_type"]
    vocabulary = build_tokenizer(metadata).vocabulary
    assert vocabulary.model is TokenizerModel.BPE
    assert {vocabulary.token_type(token_id) for token_id in range(vocabulary.n_vocab)} == {TokenType.NORMAL}


def test_special_ids_that_a_byte_level_file_does_not_name_are_none() -> None:
    tokenizer = build_tokenizer(bpe_metadata())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (None, None, False)
    assert tokenizer.eog_ids == frozenset()


def test_empty_tokens_have_a_name() -> None:
    tokenizer = build_tokenizer(bpe_metadata([("", UNUSED), ("", UNUSED)]))
    assert [tokenizer.token_text(256), tokenizer.token_text(257)] == ["[EMPTY_256]", "[EMPTY_257]"]


def without(metadata: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name != f"tokenizer.ggml.{key}"}


@pytest.mark.parametrize(
    ("metadata", "error", "problem"),
    [
        ({}, TokenizerError, "no tokenizer: tokenizer.ggml.model is missing"),
        (bpe_metadata(model="bert"), UnsupportedError, r"model 'bert' .* supported: gpt2, llama"),
        (bpe_metadata(model=3), TokenizerError, "model is 3, not a str"),
        (without(bpe_metadata(), "tokens"), TokenizerError, "tokens is missing or empty"),
        (bpe_metadata(tokens=[]), TokenizerError, "tokens is missing or empty"),
        (bpe_metadata(tokens="abc"), TokenizerError, "tokens is 'abc', not an array"),
        (bpe_metadata(tokens=["a", 1]), TokenizerError, "tokens holds a int"),
        (without(bpe_metadata(), "merges"), TokenizerError, "merges is missing"),
        (without(spm_metadata([]), "scores"), TokenizerError, "scores is missing"),
        (bpe_metadata([("a", NORMAL)]), TokenizerError, "the token 'a' occurs 2 times"),
        (bpe_metadata(token_type=[1]), TokenizerError, "token_type has 1 elements, but there are 256 tokens"),
        (bpe_metadata(token_type=[1] * 255 + [7]), TokenizerError, r"token_type\[255\] is 7"),
        (bpe_metadata(token_type=[1] * 255 + [-1]), TokenizerError, r"token_type\[255\] is -1"),
        (bpe_metadata([("<0x0g>", BYTE)]), TokenizerError, "'<0x0g>' has the type of a byte"),
        (bpe_metadata(bos_token_id=256), TokenizerError, "bos_token_id is 256, but the vocabulary has 256 tokens"),
        (bpe_metadata(eot_token_id=-1), TokenizerError, "eot_token_id is -1"),
        (bpe_metadata(padding_token_id=2**32 - 1), TokenizerError, "padding_token_id is 4294967295"),
        (bpe_metadata(eos_token_id=True), TokenizerError, "eos_token_id is True, not a int"),
        (bpe_metadata(eos_token_id="2"), TokenizerError, "eos_token_id is '2', not a int"),
        (bpe_metadata(add_bos_token=1), TokenizerError, "add_bos_token is 1, not a bool"),
        (bpe_metadata(add_bos_token=True), TokenizerError, "wants a BOS token, but .*bos_token_id is missing"),
        (bpe_metadata() | {"tokenizer.chat_template": 3}, TokenizerError, "chat_template is a int, not a string"),
    ],
)
def test_damaged_metadata_is_refused_by_name(metadata: dict[str, Any], error: type[MinferError], problem: str) -> None:
    with pytest.raises(error, match=problem):
        build_tokenizer(metadata)


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
def test_the_metadata_of_a_file_is_read_as_it_is(kind: str, tmp_path: Path) -> None:
    extra = [("<x>", CONTROL), ("<call>", USER_DEFINED)]
    metadata = (
        bpe_metadata(extra, ["a b"], bos_token_id=256, add_bos_token=True)
        if kind == "byte-level"
        else spm_metadata([("▁", -1.0), ("ab", -2.5), ("▁ab", -0.5)], extra)
    )
    path = tmp_path / "vocabulary.gguf"
    write_gguf(path, metadata | {"general.architecture": "llama"}, [])
    with open_gguf(path) as file:
        tokenizer = build_tokenizer(file.metadata)
    expected = build_tokenizer(metadata)
    assert tokenizer.vocabulary == expected.vocabulary
    text = "ab<x>ab <call>"
    assert tokenizer.tokenize(text, special=True) == expected.tokenize(text, special=True)


def test_real_metadata_is_whole() -> None:
    metadata = real_metadata("smollm2-135m")
    assert len(metadata["tokenizer.ggml.merges"]) == 48900
    assert metadata["tokenizer.ggml.merges"][0] == "Ġ t"
