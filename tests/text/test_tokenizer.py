from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from minfer import text as text_package
from minfer.errors import ParameterError
from minfer.text import Tokenizer, build_tokenizer
from text_vocabularies import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, bpe_metadata, real_tokenizer, spm_metadata

MARKS = [("<a>", CONTROL), ("<a><b>", CONTROL), ("<b>", USER_DEFINED), ("<?>", UNKNOWN), ("<n>", NORMAL)]
A, AB, B, UNK, N = range(256, 261)


def ids_of(tokenizer: Tokenizer, text: str, special: bool) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.tokenize(text, special=special)]


def test_what_the_package_offers_is_there() -> None:
    assert all(hasattr(text_package, name) for name in text_package.__all__)


def test_control_and_unknown_tokens_are_parsed_when_asked_and_user_defined_ones_always() -> None:
    tokenizer = build_tokenizer(bpe_metadata(MARKS))
    assert ids_of(tokenizer, "x<a>y<b>z<?><n>", False) == [*"x<a>y", "<b>", *"z<?><n>"]
    assert ids_of(tokenizer, "x<a>y<b>z<?><n>", True) == ["x", "<a>", "y", "<b>", "z", "<?>", *"<n>"]


def test_the_longest_of_the_tokens_that_start_at_a_place_is_taken() -> None:
    tokenizer = build_tokenizer(bpe_metadata(MARKS))
    assert tokenizer.tokenize("<a><b><a>", special=True) == [AB, A]
    assert ids_of(tokenizer, "<a><b>", False) == [*"<a>", "<b>"]


def test_words_end_at_special_tokens() -> None:
    tokenizer = build_tokenizer(bpe_metadata([("<b>", USER_DEFINED)], ["a b"]))
    assert ids_of(tokenizer, "ab a<b>b", False) == ["ab", "Ġ", "a", "<b>", "b"]


@pytest.mark.parametrize(
    ("add_bos_token", "ids", "expected"),
    [
        (True, [], [A]),
        (True, [1, 2], [A, 1, 2]),
        (True, [A, 1], [A, 1]),
        (True, [1, A], [A, 1, A]),
        (False, [], []),
        (False, [1], [1]),
        (False, [A, 1], [A, 1]),
    ],
)
def test_bos_is_there_once_if_it_is_wanted(add_bos_token: bool, ids: list[int], expected: list[int]) -> None:
    tokenizer = build_tokenizer(bpe_metadata(MARKS, bos_token_id=A, add_bos_token=add_bos_token))
    assert tokenizer.add_bos == add_bos_token
    given = list(ids)
    assert tokenizer.with_bos(given) == expected
    assert given == ids


def test_tokenise_puts_no_bos_in_front_unless_it_is_asked_to() -> None:
    tokenizer = build_tokenizer(bpe_metadata(MARKS, bos_token_id=A, add_bos_token=True))
    assert tokenizer.tokenize("x") == [ord("x")]
    assert tokenizer.tokenize("x", add_bos=True) == [A, ord("x")]
    assert tokenizer.tokenize("<a>x", special=True, add_bos=True) == [A, ord("x")]
    assert tokenizer.tokenize("<a>x", add_bos=True) == [A, *b"<a>x"]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("text", ["ab\ud83d", "\udc00", "<a>\udfff<a>"])
def test_half_of_a_character_is_refused(text: str, special: bool) -> None:
    tokenizer = build_tokenizer(bpe_metadata(MARKS))
    with pytest.raises(ParameterError, match=r"lone surrogate, U\+D[8-F]"):
        tokenizer.tokenize(text, special=special)


def test_text_must_be_text() -> None:
    wrong: Any = b"bytes"
    with pytest.raises(ParameterError, match="must be a string, not bytes b'bytes'"):
        build_tokenizer(bpe_metadata()).tokenize(wrong)


def test_ids_may_be_numpy_integers() -> None:
    tokenizer = build_tokenizer(bpe_metadata(MARKS, bos_token_id=A, add_bos_token=True))
    ids: Any = np.array([A, 120, B], dtype=np.uint16)
    assert tokenizer.detokenize(ids) == "<a>x<b>"
    assert tokenizer.with_bos(ids) == [A, 120, B]


@pytest.mark.parametrize(("name", "stripped"), [("Phi-3 mini", True), ("phi3", True), ("other", False)])
def test_special_tokens_of_phi_3_swallow_the_space_after_them(name: str, stripped: bool) -> None:
    words = [("▁", -1.0), ("a", -2.0), ("▁a", -3.0), ("\n", -4.0)]
    metadata = spm_metadata(words, [("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)], add_space_prefix=False)
    tokenizer = build_tokenizer(metadata | {"general.name": name})
    expected = ["<|user|>", "a"] if stripped else ["<|user|>", "▁", "\n", "▁a"]
    assert ids_of(tokenizer, "<|user|> \n a", True) == expected
    assert ids_of(tokenizer, "<|user|>  ", True)[1:] == ([] if stripped else ["▁", "▁"])
    assert ids_of(tokenizer, "<|endoftext|> a<s> a", True) == ["<|endoftext|>", "▁a", "<s>", "▁a"]


def test_several_threads_may_tokenise_at_once() -> None:
    tokenizer = real_tokenizer("smollm2-135m")
    texts = [f"{n} threads <|im_end|> say {'ab' * n} and é漢🙂\n" * 20 for n in range(40)]
    expected = [tokenizer.tokenize(text, special=True) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: tokenizer.tokenize(text, special=True), texts)) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_tokenises_and_nobody_writes_to_standard_error() -> None:
    program = """
import os
from text_vocabularies import bpe_metadata
from minfer.text import build_tokenizer
tokenizer = build_tokenizer(bpe_metadata(merges=["a b"]))
before = tokenizer.tokenize("abc " * 1000)
child = os.fork()
same = tokenizer.tokenize("abc " * 1000) == before
if child == 0:
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0 and same
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": path()})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def path() -> str:
    return ":".join(entry for entry in sys.path if entry)
