"""How much of the prompts a step takes, so that those who are being answered don't wait for those who ask."""

from __future__ import annotations

from typing import Final

from minfer.engine.batch_types import StepReport

MAX_SLOWDOWN: Final = 2.6
"""A step with prompt tokens may take so many times as long as one without."""
_FIRST_BUDGET: Final = 32
"""Prompt tokens of a step as long as nothing is known of its time."""
_SMALLEST_BUDGET: Final = 4
_TILE: Final = 4
"""Backends compute tokens in tiles of so many or of a multiple: what a step leaves empty of its last one is wasted."""
_NEWS: Final = 0.25
"""Weight of the latest step in a running mean."""


class PrefillPace:
    """Learns from the steps that were taken what the next one may hold. Results don't depend on it: a token's logits
    are the same bits however its prompt is cut."""

    def __init__(self) -> None:
        self._decode_s: dict[int, float] = {}
        """for each number of sequences, seconds of a step that only decodes"""
        self._per_token_s: float | None = None
        """seconds that a prompt token adds to a step"""

    def budget(self, n_decoding: int, limit: int) -> int:
        """How many prompt tokens the next step may take beside `n_decoding` sequences; at most `limit`."""
        if n_decoding == 0:
            return limit
        base = self._step_s(n_decoding)
        if base is None or self._per_token_s is None:
            return min(limit, _FIRST_BUDGET)
        n_tokens = int((MAX_SLOWDOWN - 1) * base / self._per_token_s)
        n_tokens -= (n_decoding + n_tokens) % _TILE
        return min(limit, max(n_tokens, _SMALLEST_BUDGET))

    def note(self, report: StepReport) -> None:
        """Learns from a step."""
        n_decode, n_prefill = report.n_decode_tokens, report.n_prefill_tokens
        if n_prefill == 0:
            before = self._decode_s.get(n_decode)
            self._decode_s[n_decode] = _mean(before, report.duration_s)
            return
        base = self._step_s(n_decode) if n_decode else 0.0
        if base is not None and report.duration_s > base:
            self._per_token_s = _mean(self._per_token_s, (report.duration_s - base) / n_prefill)

    def _step_s(self, n_decoding: int) -> float | None:
        """Seconds of a step for that many sequences; where it is not known, those of the nearest number that is, and
        for each sequence more or less what a prompt token takes."""
        nearest = min(self._decode_s, key=lambda n: abs(n - n_decoding), default=None)
        if nearest is None:
            return None
        known = self._decode_s[nearest]
        return max(known + (n_decoding - nearest) * (self._per_token_s or 0.0), known / 2)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _NEWS * (now - before)
