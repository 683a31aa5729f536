"""SentencePiece's BPE against llama.cpp's ids, and against the algorithm written down in its most obvious form."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.errors import TokenizerError
from minfer.text import Tokenizer, build_tokenizer
from text_vocabularies import CONTROL, SPM_FIRST_FREE, USER_DEFINED, read_json, spm_metadata

GOLDEN = read_json("text/spm.json")
GOLDEN_CASES = [(case["add_space_prefix"], row) for case in GOLDEN["cases"] for row in case["rows"]]


def golden_tokenizer(add_space_prefix: bool) -> Tokenizer:
    keys = {key: GOLDEN[key] for key in ("tokens", "token_type", "scores")}
    keys |= {"model": "llama", "add_space_prefix": add_space_prefix}
    return build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in keys.items()})


@pytest.mark.parametrize(("add_space_prefix", "row"), GOLDEN_CASES)
def test_ids_are_those_of_llama_cpp(add_space_prefix: bool, row: dict[str, Any]) -> None:
    tokenizer = golden_tokenizer(add_space_prefix)
    assert tokenizer.tokenize(row["text"]) == row["plain"]
    assert tokenizer.tokenize(row["text"], special=True) == row["special"]


def merged(text: str, metadata: dict[str, Any]) -> list[int]:
    """Merges the pair with the best score until there is none: the leftmost of equals, scores as float32."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    scores = array("f", metadata["tokenizer.ggml.scores"])
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(i, ids[a + b]) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in ids]
        if not pairs:
            break
        at, token_id = max(pairs, key=lambda pair: (scores[pair[1]], -pair[0]))
        symbols[at : at + 2] = [tokens[token_id]]
    found: list[int] = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


LETTERS = "ab▁é"
TOKENS = st.lists(st.text(LETTERS, min_size=1, max_size=5), unique=True, max_size=25)


@given(data=st.data(), tokens=TOKENS, text=st.text("ab é漢", max_size=30))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_ids_are_those_of_the_plain_algorithm(data: st.DataObject, tokens: list[str], text: str) -> None:
    scores = data.draw(st.lists(st.integers(-6, 0), min_size=len(tokens), max_size=len(tokens)))
    scored = [(token, float(score)) for token, score in zip(tokens, scores, strict=True)]
    scored += [] if "▁" in tokens else [("▁", -9.0)]
    metadata = spm_metadata(scored, add_space_prefix=False)
    tokenizer = build_tokenizer(metadata)
    ids = tokenizer.tokenize(text)
    assert ids == merged(text, metadata)
    assert tokenizer.detokenize(ids) == text


@given(text=st.text(max_size=30), special=st.booleans(), prefix=st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_text_survives(text: str, special: bool, prefix: bool) -> None:
    tokenizer = golden_tokenizer(prefix)
    # U+2581 is how SentencePiece writes a space, so it comes back as one.
    assert tokenizer.detokenize(tokenizer.tokenize(text, special=special)) == text.replace("▁", " ")


WORDS = [("▁", -1.0), ("a", -2.0), ("b", -3.0), ("▁a", -4.0), ("▁b", -5.0)]
A_SPACE, B_SPACE = SPM_FIRST_FREE + 3, SPM_FIRST_FREE + 4
A, B = SPM_FIRST_FREE + 1, SPM_FIRST_FREE + 2


def test_a_text_starts_with_a_space_and_so_does_what_follows_a_special_token() -> None:
    tokenizer = build_tokenizer(spm_metadata(WORDS, [("<call>", USER_DEFINED)]))
    call = SPM_FIRST_FREE + len(WORDS)
    assert tokenizer.tokenize("a b") == [A_SPACE, B_SPACE]
    assert tokenizer.tokenize("a<s>b", special=True) == [A_SPACE, 1, B_SPACE]
    assert tokenizer.tokenize("<call>b") == [call, B_SPACE]
    assert tokenizer.tokenize("") == []
    assert tokenizer.with_bos(tokenizer.tokenize("a")) == [1, A_SPACE]


def test_no_space_where_the_file_says_so() -> None:
    tokenizer = build_tokenizer(spm_metadata(WORDS, add_space_prefix=False))
    assert tokenizer.tokenize("a b") == [A, B_SPACE]
    assert tokenizer.detokenize([A_SPACE]) == " a"


def test_the_space_that_tokenising_put_there_is_taken_away() -> None:
    tokenizer = build_tokenizer(spm_metadata(WORDS))
    assert tokenizer.detokenize([A_SPACE, B_SPACE]) == "a b"
    assert tokenizer.detokenize([1, A_SPACE], special=False) == "a"
    assert tokenizer.detokenize([1, A_SPACE]) == "<s> a"
    assert tokenizer.detokenize(tokenizer.tokenize("  a")) == "  a"


def test_a_stream_that_goes_on_keeps_its_space() -> None:
    tokenizer = build_tokenizer(spm_metadata(WORDS))
    assert tokenizer.stream_decoder().push(A_SPACE) == "a"
    assert tokenizer.stream_decoder(at_start=False).push(A_SPACE) == " a"


def test_the_defaults_of_the_special_ids() -> None:
    tokenizer = build_tokenizer(spm_metadata(WORDS))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocabulary.unk_id) == (1, 2, 0)
    assert tokenizer.add_bos
    assert tokenizer.eog_ids == {2}


def test_byte_tokens_are_bytes_and_not_text() -> None:
    tokenizer = build_tokenizer(spm_metadata(WORDS, add_space_prefix=False))
    ids = tokenizer.tokenize("é")
    assert [tokenizer.token_text(token_id) for token_id in ids] == ["<0xC3>", "<0xA9>"]
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"\xc3", b"\xa9"]
    assert tokenizer.detokenize(ids) == "é"
    assert 3 not in tokenizer.tokenize("<0x00>", special=True)


@pytest.mark.parametrize("character", ["a", " ", "7", "é"])
def test_long_runs_take_no_time_to_speak_of(character: str) -> None:
    tokenizer = golden_tokenizer(True)
    assert tokenizer.detokenize(tokenizer.tokenize(character * 100_000)) == character * 100_000


def test_a_vocabulary_without_all_bytes_is_refused() -> None:
    metadata = spm_metadata(WORDS)
    metadata["tokenizer.ggml.tokens"][3 + 0x41] = "x"
    metadata["tokenizer.ggml.token_type"][3 + 0x41] = 1
    with pytest.raises(TokenizerError, match=r"1 of the 256 byte tokens are missing, among them <0x41>"):
        build_tokenizer(metadata)


def test_a_vocabulary_whose_unknown_token_is_a_byte_is_refused() -> None:
    with pytest.raises(TokenizerError, match="does not make a SentencePiece model"):
        build_tokenizer(spm_metadata(WORDS, unknown_token_id=3))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokenizer.ggml.scores": None}, "scores is missing"),
        ({"tokenizer.ggml.scores": [0.0]}, "scores has 1 elements, but there are 264 tokens"),
        ({"tokenizer.ggml.scores": ["x"] * 264}, "scores holds a str"),
    ],
)
def test_bad_scores_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(TokenizerError, match=problem):
        build_tokenizer(spm_metadata(WORDS) | change)


def test_a_control_token_is_plain_text_unless_it_is_asked_for() -> None:
    tokenizer = build_tokenizer(spm_metadata([*WORDS, ("<", -6.0), (">", -7.0)], [("<x>", CONTROL)]))
    control = tokenizer.n_vocab - 1
    assert tokenizer.tokenize("<x>", special=True) == [control]
    assert control not in tokenizer.tokenize("<x>")
