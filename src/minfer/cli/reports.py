"""What is said about an answer: its counts and speed, and why it ended where that is not plain."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.engine import Generation, Model, StopCause


def stats_lines(model: Model, result: Generation, stages: Sequence[str]) -> list[str]:
    """Counts and speed of an answer, the sampler's pipeline, and what the cache takes."""
    stats = result.stats
    cached = f", {stats.n_cached_tokens} from the cache" if stats.n_cached_tokens else ""
    dropped = f"; dropped from the context: {stats.n_dropped_tokens} tokens" if stats.n_dropped_tokens else ""
    return [
        f"prefill: {stats.n_prefill_tokens} tokens in {stats.prefill_s:.2f} s "
        f"({stats.prefill_tokens_per_s:.1f} tokens/s){cached}; "
        f"decode: {stats.n_decode_tokens} tokens in {stats.decode_s:.2f} s ({stats.decode_tokens_per_s:.1f} tokens/s)",
        f"generated: {len(result.tokens)} tokens; "
        f"finish: {result.finish_reason.value} ({result.stop_cause.value}); seed: {stats.seed}{dropped}",
        f"sampling: {' -> '.join([*stages, 'draw'])}",
        cache_line(model),
    ]


def cache_line(model: Model) -> str:
    """What the KV cache takes."""
    return f"KV cache: {model.kv_position_bytes:,} bytes a position, {model.kv_bytes_in_use:,} bytes in use"


def end_notice(result: Generation) -> str:
    """That the context ended an answer, if it did."""
    return "(the context is full; --n-ctx sets its size)" if result.stop_cause is StopCause.CONTEXT_END else ""
