"""Finding special tokens in a text before anything else is made of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

_ASCII_SPACES = frozenset(" \t\n\v\f\r")


class TokenMatcher:
    """Cuts a text at the special tokens in it: the leftmost first, and where several start there, the longest.

    (llama.cpp goes through the tokens, the longest first. The two differ only where two special tokens overlap in a
    text.)
    """

    def __init__(self, ids: Mapping[str, int], rstrip_ids: Collection[int] = ()) -> None:
        self._ids = dict(ids)
        self._rstrip_ids = frozenset(rstrip_ids)
        # A regular expression of all tokens would take longer to compile than the rest of a start-up: some vocabularies
        # have thousands. It looks for first characters instead, and the lengths that occur behind one are few.
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(self._lengths))}]") if self._lengths else None

    def split(self, text: str) -> Iterator[tuple[str | int, int]]:
        """The pieces of a text in order: strings, none of them empty, and ids of the special tokens between them; each
        with where it ends in the text."""
        start = position = 0
        while self._first is not None and (candidate := self._first.search(text, position)):
            position = candidate.start()
            token_id, end = self._longest_at(text, position)
            if token_id is None:
                position += 1
                continue
            if position > start:
                yield text[start:position], position
            if token_id in self._rstrip_ids:
                while text[end : end + 1] in _ASCII_SPACES:
                    end += 1
            yield token_id, end
            start = position = end
        if start < len(text):
            yield text[start:], len(text)

    def _longest_at(self, text: str, position: int) -> tuple[int | None, int]:
        for length in self._lengths[text[position]]:
            token_id = self._ids.get(text[position : position + length])
            if token_id is not None:
                return token_id, position + length
        return None, position
