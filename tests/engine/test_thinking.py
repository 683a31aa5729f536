"""Thinking is told from the answer, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine.thinking import AnswerPart, opens_thinking, split_stream, split_thinking


def joined(pieces: list[str], starts_inside: bool = False) -> tuple[str, str]:
    parts = list(split_stream(pieces, starts_inside))
    assert all(part.text for part in parts)
    assert [part.is_thinking for part in parts] == sorted((part.is_thinking for part in parts), reverse=True)
    return tuple("".join(part.text for part in parts if part.is_thinking is kind) for kind in (True, False))


@pytest.mark.parametrize(
    ("text", "starts_inside", "want"),
    [
        ("<think>\nhm\n</think>\n\nYes.\n", False, ("\nhm\n", "Yes.\n")),
        ("\n <think>hm</think>Yes", False, ("hm", "Yes")),
        ("hm</think> Yes", True, ("hm", "Yes")),
        ("<think></think>Yes", False, ("", "Yes")),
        ("<think>hm </thin", False, ("hm </thin", "")),
        ("<think>hm</think>\n", False, ("hm", "")),
        ("  Yes, <think>no</think>", False, ("", "  Yes, <think>no</think>")),
        ("<think>a</think>b<think>c</think>d", False, ("a", "b<think>c</think>d")),
        ("<thin", False, ("", "<thin")),
        (" \n", False, ("", " \n")),
        ("<thinking>x", False, ("", "<thinking>x")),
        ("", True, ("", "")),
        ("</think>", True, ("", "")),
    ],
)
def test_texts(text: str, starts_inside: bool, want: tuple[str, str]) -> None:
    assert joined([text], starts_inside) == want
    assert joined(list(text), starts_inside) == want


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "th", "ink>", " ", "\n", "a"])), st.booleans(), st.data()
)
def test_cuts_change_nothing(tokens: list[str], starts_inside: bool, data: st.DataObject) -> None:
    text = "".join(tokens)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert joined(pieces, starts_inside) == joined([text], starts_inside)


def test_text_is_given_as_soon_as_it_is_decided() -> None:
    pieces = iter(["<th", "ink>a", "b</", "c</think>", "\n", "d", "e"])
    seen = [(part.text, part.is_thinking) for part in split_stream(pieces)]
    assert seen == [("a", True), ("b", True), ("</c", True), ("d", False), ("e", False)]
    stream = split_stream(iter(["Yes", "no"]))
    assert next(stream) == AnswerPart("Yes", False)


def test_a_whole_text() -> None:
    assert split_thinking("<think>\n\nhm\n</think>\n\nYes\n") == ("hm", "Yes\n")
    assert split_thinking("Yes\n") == ("", "Yes\n")


def test_prompts_that_open_a_block() -> None:
    assert opens_thinking("...assistant\n<think>\n")
    assert not opens_thinking("...assistant\n<think>\n\n</think>\n\n")
    assert not opens_thinking("...assistant\n")
