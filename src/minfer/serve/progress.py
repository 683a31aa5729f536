"""How much of the prompts has been read, as a stream tells it."""

from __future__ import annotations

import time

from minfer.serve.engine_protocol import PromptProgress, Started
from minfer.serve.schema_common import PromptProgressReport


class ProgressReporter:
    """Makes reports of the engine's events, for one prompt."""

    def __init__(self, submitted_s: float) -> None:
        self._submitted_s = submitted_s
        self._n_cached = 0

    def note(self, news: Started | PromptProgress) -> PromptProgressReport | None:
        """The report after an event; None where it only says how the prompt begins."""
        if isinstance(news, Started):
            self._n_cached = news.n_cached_tokens
            return None
        time_ms = 1000 * (time.perf_counter() - self._submitted_s)
        return PromptProgressReport(total=news.n_total, cache=self._n_cached, processed=news.n_done, time_ms=time_ms)
