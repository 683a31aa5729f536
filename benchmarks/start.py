#!/usr/bin/env python3
"""From the command to the first token, and the memory that a load takes.

usage: start.py [MODEL.gguf] [--threads N] [--runs N] [--json FILE]

Time: `minfer run` as a new process, until the first byte of its answer; the median of several runs, with the kernels
in the cache and with an empty cache. The model's file has been read before: what a disk adds is not measured.

Memory: the peak of the resident set of a process that loads the model and computes one token, with the kernels in the
cache (and, beside it, that of a start that has to compile them: LLVM takes some 60 MB for it). Allowed are 1.25 times
the file, the pages of the KV cache that one token needs, the arena, and 150 MB for Python and its libraries. Exit code
1 if it is more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from records import append_lines, facts, show_facts

from minfer.hub import fetch_default_model
from minfer.settings import read_settings

ALLOWED_SHARE = 1.25
ALLOWED_REST_BYTES = 150_000_000

MEMORY = """
import json, resource, sys
import minfer
from minfer.backends import make_backend
from minfer.engine.runtime import step_bounds
from minfer.gguf import open_gguf
from minfer.graph import PAGE_SIZE, Symbol, ValueKind
from minfer.models import declare_graph
from minfer.passes import PassContext, lower
from minfer.settings import read_settings
path, threads = sys.argv[1], int(sys.argv[2])
with minfer.load(path, threads=threads, backend="cpu") as model:
    model.logits([1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    n_ctx = model.n_ctx
with open_gguf(path) as file:
    bounds = step_bounds(n_ctx)
    _, graph = declare_graph(file, None)
    graph = lower(graph, PassContext((make_backend("cpu", read_settings()),), bounds))
    kv = sum(value.spec.n_bytes({**bounds, Symbol.N_CELLS: PAGE_SIZE}) for value in graph.of_kind(ValueKind.STATE))
    arena = sum(graph.memory.arena_bytes.values())
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps({"peak_rss_bytes": peak * unit, "kv_page_bytes": kv, "arena_bytes": arena, "n_ctx": n_ctx}))
"""


def first_token_s(path: Path, threads: int, cache_dir: Path) -> float:
    """Seconds from the start of the process to the first byte of the answer."""
    command = [sys.executable, "-m", "minfer", "run", "Say hello.", "--model", str(path), "--max-tokens", "1"]
    command += ["--temperature", "0", "--threads", str(threads), "--backend", "cpu"]
    environment = {**os.environ, "MINFER_CACHE_DIR": str(cache_dir)}
    begin_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0)
    assert process.stdout is not None
    first = process.stdout.read(1)
    duration_s = time.perf_counter() - begin_s
    _, errors = process.communicate()
    if process.returncode != 0 or not first:
        raise SystemExit(f"minfer run failed:\n{errors.decode()}")
    return duration_s


def start_times(path: Path, threads: int, n_runs: int) -> dict[str, list[float]]:
    """Seconds of every run, with a warm cache of kernels and with a cold one, in turn."""
    times: dict[str, list[float]] = {"warm": [], "cold": []}
    with tempfile.TemporaryDirectory() as warm:
        first_token_s(path, threads, Path(warm))
        for _ in range(n_runs):
            times["warm"].append(first_token_s(path, threads, Path(warm)))
            with tempfile.TemporaryDirectory() as cold:
                times["cold"].append(first_token_s(path, threads, Path(cold)))
    return times


def memory(path: Path, threads: int) -> dict[str, int]:
    """Bytes: the peak, also that of a start that compiles, and what of the cache and the arena is allowed for."""
    command = [sys.executable, "-c", MEMORY, str(path), str(threads)]
    with tempfile.TemporaryDirectory() as cache_dir:
        environment = {**os.environ, "MINFER_CACHE_DIR": cache_dir}
        cold, warm = (
            json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)
            for _ in range(2)
        )
    allowed = ALLOWED_SHARE * path.stat().st_size + warm["kv_page_bytes"] + warm["arena_bytes"] + ALLOWED_REST_BYTES
    return {
        **warm,
        "cold_peak_rss_bytes": cold["peak_rss_bytes"],
        "file_bytes": path.stat().st_size,
        "allowed_bytes": int(allowed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="by default the default model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    path = arguments.model or fetch_default_model(read_settings().cache_dir)
    times = start_times(path, arguments.threads, arguments.runs)
    used = memory(path, arguments.threads)
    known: dict[str, Any] = facts(path, arguments.threads)
    show_facts(known)
    for name, seconds in times.items():
        print(f"{name} cache: first token after {statistics.median(seconds):.2f} s", end="")
        print(f" (median of {len(seconds)}, from {min(seconds):.2f} to {max(seconds):.2f})")
    print(", ".join(f"{name.removesuffix('_bytes')} {n / 1e6:.0f} MB" for name, n in used.items() if name != "n_ctx"))
    medians = {f"{name}_start_s": statistics.median(seconds) for name, seconds in times.items()}
    append_lines(arguments.json, [{**known, "task": "start", **medians, "n_runs": arguments.runs, **used}])
    if used["peak_rss_bytes"] > used["allowed_bytes"]:
        raise SystemExit("more memory than allowed")


if __name__ == "__main__":
    main()
