"""Stop strings: text is let through only when no stop string can begin in it any more."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.errors import ParameterError


class StopMatcher:
    """Watches a stream of text for stop strings. No part of one is ever let through.

    Raises:
        ParameterError: an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise ParameterError(f"stop must be non-empty strings, not {stop!r}")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """the stop string that was met"""

    def push(self, text: str) -> str:
        """Takes the next piece and returns what is safe to show. Once `matched` is set, nothing more is."""
        if self.matched is not None:
            return ""
        self._held += text
        starts = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if starts:
            # The first to be complete ends the text, so that the pieces' borders don't matter; of several, the longest.
            _, start, self.matched = min((start + len(stop), start, stop) for start, stop in starts)
            safe, self._held = self._held[:start], ""
            return safe
        n_held = max((overlap(self._held, stop) for stop in self._stops), default=0)
        n_safe = len(self._held) - n_held
        safe, self._held = self._held[:n_safe], self._held[n_safe:]
        return safe

    def finish(self) -> str:
        """What was held back and turned out to begin no stop string."""
        safe, self._held = self._held, ""
        return safe


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a proper beginning of `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
