from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.errors import TokenizerError
from minfer.text import StreamDecoder, Tokenizer, build_tokenizer
from text_vocabularies import CONTROL, UNUSED, USER_DEFINED, bpe_metadata, real_tokenizer, spm_metadata

BPE = build_tokenizer(bpe_metadata([("<x>", CONTROL), ("<call>", USER_DEFINED), ("[unused]", UNUSED)], ["a b"]))
SPM = build_tokenizer(
    spm_metadata([("▁", -1.0), ("▁a", -2.0), ("b", -3.0)], [("<x>", CONTROL), ("  ", USER_DEFINED), ("u", UNUSED)])
)


def whole(tokenizer: Tokenizer, ids: list[int], special: bool) -> str:
    """The text of ids as one string of bytes: what a stream must come to."""
    left_out = (CONTROL, 2) if not special else ()
    used = [token_id for token_id in ids if tokenizer.vocabulary.types[token_id] not in left_out]
    spoken = [token_id for token_id in used if tokenizer.token_bytes(token_id)]
    data = b"".join(map(tokenizer.token_bytes, spoken))
    prefixed = bool(spoken) and tokenizer.vocabulary.types[spoken[0]] not in (CONTROL, USER_DEFINED, 2)
    if tokenizer.vocabulary.add_space_prefix and prefixed:
        data = data.removeprefix(b" ")
    return data.decode(errors="replace")


@given(data=st.data(), special=st.booleans(), tokenizer=st.sampled_from([BPE, SPM]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_stream_is_the_whole(data: st.DataObject, special: bool, tokenizer: Tokenizer) -> None:
    any_id = st.integers(0, tokenizer.n_vocab - 1)
    rare = st.integers(tokenizer.n_vocab - 6, tokenizer.n_vocab - 1)  # the special ones
    ids = data.draw(st.lists(any_id | rare, max_size=12))
    decoder = tokenizer.stream_decoder(special=special)
    pieces = [decoder.push(token_id) for token_id in ids]
    text = "".join(pieces) + decoder.finish()
    assert text == tokenizer.detokenize(ids, special=special) == whole(tokenizer, ids, special)
    # A character is not said before it is certain, so what was said stays the start of the text.
    assert all(text.startswith("".join(pieces[:n])) for n in range(len(pieces)))


@given(data=st.binary(max_size=12))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_bytes_become_what_decoding_them_at_once_makes_of_them(data: bytes) -> None:
    decoder = BPE.stream_decoder()
    assert "".join(map(decoder.push, data_ids(data))) + decoder.finish() == data.decode(errors="replace")


def data_ids(data: bytes) -> list[int]:
    return list(data)  # in the tiny vocabulary a byte's id is the byte


def pushed(decoder: StreamDecoder, ids: list[int]) -> list[str]:
    return [*map(decoder.push, ids), decoder.finish()]


def test_a_character_is_said_when_it_is_complete() -> None:
    assert pushed(BPE.stream_decoder(), data_ids("é漢🙂".encode())) == ["", "é", "", "", "漢", "", "", "", "🙂", ""]


def test_what_cannot_become_a_character_is_replaced_at_once_and_the_rest_at_the_end() -> None:
    assert pushed(BPE.stream_decoder(), data_ids(b"\xe6a\xff\xe6\xbc")) == ["", "\ufffda", "\ufffd", "", "", "\ufffd"]


def test_control_tokens_are_left_out_and_user_defined_ones_are_not() -> None:
    x, call, unused = BPE.n_vocab - 3, BPE.n_vocab - 2, BPE.n_vocab - 1
    ids = [ord("a"), x, call, unused, ord("b")]
    assert BPE.detokenize(ids) == "a<x><call>b"
    assert BPE.detokenize(ids, special=False) == "a<call>b"


def test_a_control_token_does_not_complete_a_character_that_was_begun() -> None:
    x = BPE.n_vocab - 3
    assert BPE.detokenize([0xC3, x, 0xA9]) == "\ufffd<x>\ufffd"
    assert BPE.detokenize([0xC3, x, 0xA9], special=False) == "é"


@pytest.mark.parametrize("token_id", [-1, 49152, 2**40])
def test_an_id_out_of_range_is_named_with_the_size(token_id: int) -> None:
    tokenizer = real_tokenizer("smollm2-135m")
    match = rf"token id {token_id} .* 49152 tokens"
    with pytest.raises(TokenizerError, match=match):
        tokenizer.detokenize([1, token_id])
    with pytest.raises(TokenizerError, match=match):
        tokenizer.detokenize([1, token_id], special=False)
    with pytest.raises(TokenizerError, match=match):
        tokenizer.stream_decoder().push(token_id)
    with pytest.raises(TokenizerError, match=match):
        tokenizer.token_bytes(token_id)
    with pytest.raises(TokenizerError, match=match):
        tokenizer.token_text(token_id)
