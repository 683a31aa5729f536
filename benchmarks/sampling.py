"""What sampling a token costs, stage by stage: needs no model.

    python benchmarks/sampling.py
    python benchmarks/sampling.py --n-vocab 32000 top_k=0 top_p=0.9 repetition_penalty=1.1
    python benchmarks/sampling.py --backend reference mirostat=2

The logits are normal numbers with a few high peaks, as a model's are, and change with every token, so that they are
not in the nearest cache, as after a decode step. Times are medians. The stages are measured one by one, and the whole
by itself; it has what lies between them, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from minfer.backends import BACKEND_NAMES, make_backend
from minfer.sampling import Sampler, SamplingParams, SequenceBreakers, VocabularyOps, token_logprobs
from minfer.sampling.draw import draw
from minfer.sampling.pipeline import STAGES, Step
from minfer.sampling.whole import whole_vocabulary
from minfer.settings import read_settings

N_ROWS = 16
N_REPETITIONS = 300
BREAKERS = SequenceBreakers(frozenset({198, 25, 1, 9}))


def make_rows(n_vocab: int) -> list[NDArray[np.float32]]:
    generator = np.random.default_rng(0)
    rows = [generator.normal(0, 2.5, n_vocab).astype(np.float32) for _ in range(N_ROWS)]
    for row in rows:
        row[generator.integers(0, n_vocab, 12)] = np.linspace(12, 19, 12)
    return rows


def by_stage(
    params: SamplingParams, rows: list[NDArray[np.float32]], ops: VocabularyOps, history: list[int]
) -> dict[str, float]:
    """Microseconds of each stage of the pipeline but mirostat's."""
    names = Sampler(params, len(rows[0]), ops=ops, dry_breakers=BREAKERS).stages
    names = tuple(name for name in names if name in STAGES)
    times: dict[str, list[float]] = {name: [] for name in ("check", *names, "draw")}

    def timed(name: str, work: Callable[[], object]) -> object:
        start = time.perf_counter()
        result = work()
        times[name].append(time.perf_counter() - start)
        return result

    for repetition in range(N_REPETITIONS):
        logits = rows[repetition % N_ROWS]
        step = Step(params, logits, history, BREAKERS, None, 0.0)
        tokens = timed("check", lambda logits=logits: whole_vocabulary(logits, ops))
        for name in names:
            tokens = timed(name, lambda name=name, tokens=tokens, step=step: STAGES[name](tokens, step))
        timed("draw", lambda tokens=tokens: draw(tokens, 0.3))
    return {name: statistics.median(each) * 1e6 for name, each in times.items()}


def of_all(rows: list[NDArray[np.float32]], work: Callable[[NDArray[np.float32]], object]) -> float:
    """Microseconds."""
    times = []
    for repetition in range(N_REPETITIONS):
        logits = rows[repetition % N_ROWS]
        start = time.perf_counter()
        work(logits)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def parameter(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-vocab", type=int, default=151_936, help="size of the vocabulary")
    parser.add_argument("--decode-ms", type=float, default=10.0, help="what a decode step takes, in milliseconds")
    parser.add_argument("--history", type=int, default=1000, help="tokens so far, for penalties and DRY")
    parser.add_argument("--backend", choices=BACKEND_NAMES, default=BACKEND_NAMES[0])
    parser.add_argument("parameters", nargs="*", type=parameter, metavar="NAME=VALUE", help="of SamplingParams")
    arguments = parser.parse_args()

    params = SamplingParams(seed=1, **dict(arguments.parameters))
    rows = make_rows(arguments.n_vocab)
    ops = make_backend(arguments.backend, read_settings()).vocabulary_ops()
    history = np.random.default_rng(1).zipf(1.3, arguments.history).clip(0, arguments.n_vocab - 1).tolist()
    sampler = Sampler(params, arguments.n_vocab, ops=ops, dry_breakers=BREAKERS)

    print(f"{arguments.n_vocab} tokens, {arguments.backend} backend; share of a decode of {arguments.decode_ms} ms")
    lines = by_stage(params, rows, ops, history)
    lines["sample"] = of_all(rows, lambda logits: sampler.sample(logits, history))
    lines["logprobs (top 5)"] = of_all(rows, lambda logits: token_logprobs(logits, 0, 5, ops))
    for name, duration_us in lines.items():
        print(f"{name:<18} {duration_us:8.1f} us {duration_us / arguments.decode_ms / 10:7.2f} %")


if __name__ == "__main__":
    main()
