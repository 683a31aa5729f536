"""Finding a mark in text that comes in pieces."""

from __future__ import annotations


def n_held(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`: they can't be shown yet."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0
