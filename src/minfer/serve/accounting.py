"""What an answer cost: usage as OpenAI counts it, timings as llama.cpp's server tells them."""

from __future__ import annotations

from minfer.serve.engine_protocol import SampleStats
from minfer.serve.schema_common import PromptTokensDetails, Timings, Usage


class Account:
    """The statistics of the samples of one HTTP request, as they end."""

    def __init__(self) -> None:
        self._stats: dict[int, list[SampleStats]] = {}

    def add(self, prompt: int, stats: SampleStats) -> None:
        """Takes a sample of a prompt."""
        self._stats.setdefault(prompt, []).append(stats)

    def usage(self) -> Usage:
        """A prompt counts once, however many answers it has."""
        n_prompt = sum(samples[0].n_prompt_tokens for samples in self._stats.values())
        n_cached = sum(samples[0].n_cached_tokens for samples in self._stats.values())
        n_generated = self._n_generated()
        return Usage(
            prompt_tokens=n_prompt,
            completion_tokens=n_generated,
            total_tokens=n_prompt + n_generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=n_cached),
        )

    def timings(self) -> Timings:
        """Several prompts and samples run side by side: their tokens add up, and the longest of their times counts."""
        first = [samples[0] for samples in self._stats.values()]
        n_cached = sum(stats.n_cached_tokens for stats in first)
        n_prompt = sum(stats.n_prompt_tokens for stats in first) - n_cached
        prompt_s = max((stats.prefill_s for stats in first), default=0.0)
        n_generated = self._n_generated()
        predicted_s = max((stats.decode_s for samples in self._stats.values() for stats in samples), default=0.0)
        return Timings(
            cache_n=n_cached,
            prompt_n=n_prompt,
            prompt_ms=1000 * prompt_s,
            prompt_per_token_ms=1000 * prompt_s / n_prompt if n_prompt else 0.0,
            prompt_per_second=n_prompt / prompt_s if prompt_s else 0.0,
            predicted_n=n_generated,
            predicted_ms=1000 * predicted_s,
            predicted_per_token_ms=1000 * predicted_s / n_generated if n_generated else 0.0,
            predicted_per_second=n_generated / predicted_s if predicted_s else 0.0,
        )

    def _n_generated(self) -> int:
        return sum(stats.n_generated_tokens for samples in self._stats.values() for stats in samples)
