"""How a long operation tells how far it is. The command line shows a bar, a library caller may pass its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Receives `start`, then any number of `advance`, then `finish` (also after an error); then the next phase's.

    All calls are made one after the other, though `advance` not always from the thread that called `start`.
    """

    def start(self, description: str, total_bytes: int | None) -> None:
        """A phase begins; `total_bytes` is None where its length is not known."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""

    def finish(self) -> None:
        """The phase has ended, well or not."""


class _Silent:
    def start(self, description: str, total_bytes: int | None) -> None:
        """Shows nothing."""

    def advance(self, n_bytes: int) -> None:
        """Shows nothing."""

    def finish(self) -> None:
        """Shows nothing."""


@contextmanager
def phase(progress: Progress | None, description: str, total_bytes: int | None) -> Iterator[Progress]:
    """One phase from `start` to `finish`; with None for `progress` it is shown nowhere."""
    shown = _Silent() if progress is None else progress
    shown.start(description, total_bytes)
    try:
        yield shown
    finally:
        shown.finish()
