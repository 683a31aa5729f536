"""Stop strings end a text without showing any part of themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer.engine.stops import StopMatcher
from minfer.errors import ParameterError


def feed(stops: list[str], pieces: list[str]) -> tuple[str, list[str], str | None]:
    """What is shown in all, piece by piece, and the stop string that was met."""
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    if matcher.matched is None:
        shown.append(matcher.finish())
    return "".join(shown), shown, matcher.matched


def test_a_stop_in_one_piece() -> None:
    assert feed(["\n\n"], ["one\n", "two\n\nthree"]) == ("one\ntwo", ["one", "\ntwo"], "\n\n")


def test_a_stop_across_pieces_is_held_back_until_it_is_decided() -> None:
    text, shown, matched = feed(["END"], ["a", "E", "N", "x", "E", "N", "D", "b"])
    assert (text, matched) == ("aENx", "END")
    assert shown == ["a", "", "", "ENx", "", "", "", ""]


def test_what_was_held_back_appears_at_the_end() -> None:
    assert feed(["STOP"], ["it is a STO"]) == ("it is a STO", ["it is a ", "STO"], None)


def test_the_first_to_be_complete_ends_the_text() -> None:
    assert feed(["later", "soon"], ["not soon, later"])[::2] == ("not ", "soon")
    assert feed(["a", "bab"], ["bab"])[::2] == ("b", "a")


def test_of_several_that_end_at_one_place_the_longest_is_named() -> None:
    assert feed(["c", "abc"], ["xabcd"])[::2] == ("x", "abc")


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["."])
    assert (matcher.push("a.b"), matcher.push("c"), matcher.finish()) == ("a", "", "")


@pytest.mark.parametrize("stops", [[""], ["a", ""], [3]])
def test_only_non_empty_strings(stops: list[str]) -> None:
    with pytest.raises(ParameterError, match="non-empty strings"):
        StopMatcher(stops)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_equals_searching_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    ends = [(end, -len(stop)) for stop in stops for end in range(len(whole) + 1) if whole[:end].endswith(stop)]
    text, shown, matched = feed(stops, pieces)
    assert text == (whole[: sum(min(ends))] if ends else whole)
    assert (matched is not None) == bool(ends)
    so_far = ""
    for piece in shown:
        so_far += piece
        assert whole.startswith(so_far)
