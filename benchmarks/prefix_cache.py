#!/usr/bin/env python3
"""What it costs to find a prefix and to keep a finished sequence, among many that are kept.

usage: prefix_cache.py [--sequences N] [--tokens N] [--runs N] [--json FILE]

N sequences of N tokens are kept; all begin with the same quarter of their tokens, such as a system prompt. Then, as
medians over the runs: finding the longest beginning of a prompt that continues one of them; keeping a sequence that is
there already; and keeping a new one. All three are done under the lock of the steps, so that they should take far less
time than a step (target: 0.2 ms each).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from records import append_lines, facts, show_facts

from minfer.engine.kv_cache import KVSequence, token_bytes
from minfer.engine.page_pool import PagePool, pages_for
from minfer.engine.prefix_cache import PrefixCache

N_VOCAB = 150_000


class NoContents:
    """Pages without bytes: what is measured is the bookkeeping."""

    def copy_page(self, source: int, target: int) -> None: ...

    def check_movable(self) -> None: ...

    def move_rows(self, sources: NDArray[np.int32], targets: NDArray[np.int32], n_positions: int) -> None: ...


def median_ms(task: Callable[[int], object], n_runs: int) -> float:
    times = []
    for run in range(n_runs):
        start_s = time.perf_counter()
        task(run)
        times.append(time.perf_counter() - start_s)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    n_sequences, n_tokens, n_runs = arguments.sequences, arguments.tokens, arguments.runs
    dice = random.Random(1)
    pool = PagePool((n_sequences + n_runs) * pages_for(n_tokens + 1))
    cache = PrefixCache(pool, 1, pool.n_pages)
    common = [dice.randrange(N_VOCAB) for _ in range(n_tokens // 4)]

    def sequence() -> KVSequence:
        made = KVSequence(pool, NoContents(), n_tokens)
        made.reserve(n_tokens)
        made.append([*common, *(dice.randrange(N_VOCAB) for _ in range(n_tokens - len(common)))])
        return made

    finished = [sequence() for _ in range(n_sequences)]
    for each in finished:
        cache.keep(each)
    prompts = [token_bytes([*each.tokens, 1]) for each in finished]
    new = [sequence() for _ in range(n_runs)]
    known = facts("none", 1)
    show_facts(known)
    figures = {
        "find": median_ms(lambda run: cache.find(prompts[run % n_sequences]), n_runs),
        "keep again": median_ms(lambda run: cache.keep(finished[run % n_sequences]), n_runs),
        "keep": median_ms(lambda run: cache.keep(new[run]), n_runs),
    }
    for name, value in figures.items():
        print(f"{name:12} {value:.3f} ms")
    append_lines(arguments.json, [{**known, "task": name, "ms": value} for name, value in figures.items()])


if __name__ == "__main__":
    main()
