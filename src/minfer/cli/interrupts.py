"""Ctrl-C while an answer is generated: it stops the answer, and nothing else."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """While it is entered, Ctrl-C is noted, for the answer to stop between two tokens; a second one interrupts at once.

    Only the main thread can enter it.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
