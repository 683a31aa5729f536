"""What is said about an answer: its counts and speed, and why it ended where that is not plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minfer.cli.parameters import shown_value
from minfer.engine import DefaultSampling, Generation, Model, SamplingSource, StopCause
from minfer.sampling import SamplingParams

_SOURCES: Final = {
    SamplingSource.FILE: "recommended by the model's file",
    SamplingSource.CATALOGUE: "recommended for this model by minfer's catalogue",
    SamplingSource.MINFER: "minfer's defaults; nobody recommends others for this model",
}


def sampling_line(defaults: DefaultSampling) -> str:
    """How tokens are chosen where nobody says otherwise, and who says so."""
    names = defaults.recommended or ("temperature", "top_k", "top_p", "min_p")
    values = ", ".join(f"{name} {shown_value(getattr(defaults.params, name))}" for name in names)
    return f"{values} ({_SOURCES[defaults.source]})"


def stats_lines(model: Model, result: Generation, stages: Sequence[str], params: SamplingParams) -> list[str]:
    """Counts and speed of an answer, the sampler's pipeline and its parameters' source, and what the cache takes."""
    stats = result.stats
    used = model.default_sampling.used(params)
    values = ", ".join(f"{name} {shown_value(value)}" for name, value in used.items())
    source = f"; {values} {_SOURCES[model.default_sampling.source]}" if used else ""
    cached = f", {stats.n_cached_tokens} from the cache" if stats.n_cached_tokens else ""
    dropped = f"; dropped from the context: {stats.n_dropped_tokens} tokens" if stats.n_dropped_tokens else ""
    return [
        f"prefill: {stats.n_prefill_tokens} tokens in {stats.prefill_s:.2f} s "
        f"({stats.prefill_tokens_per_s:.1f} tokens/s){cached}; "
        f"decode: {stats.n_decode_tokens} tokens in {stats.decode_s:.2f} s ({stats.decode_tokens_per_s:.1f} tokens/s)",
        f"generated: {len(result.tokens)} tokens; "
        f"finish: {result.finish_reason.value} ({result.stop_cause.value}); seed: {stats.seed}{dropped}",
        f"sampling: {' -> '.join([*stages, 'draw'])}{source}",
        cache_line(model),
    ]


def cache_line(model: Model) -> str:
    """What the KV cache takes."""
    return f"KV cache: {model.kv_position_bytes:,} bytes a position, {model.kv_bytes_in_use:,} bytes in use"


def end_notice(result: Generation) -> str:
    """That the context ended an answer, if it did."""
    return "(the context is full; --n-ctx sets its size)" if result.stop_cause is StopCause.CONTEXT_END else ""
