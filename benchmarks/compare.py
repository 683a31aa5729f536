#!/usr/bin/env python3
"""minfer against llama-cpp-python: the same file, threads and token ids, interleaved in one run; medians, and ratios.

usage: compare.py MODEL.gguf [--peer-python PYTHON] [--threads N] [--runs N] [--json FILE]

PYTHON is the interpreter of an environment that has llama-cpp-python (benchmarks/install-peer makes one; without it,
only minfer is measured, which the output says). Beside it stand the limits of the machine, measured in the same run
on as many threads: streaming read bandwidth for decode, the `dot4` rate for prefill, and how much of them each side
used. For a token of decoding, that is the bytes of all weights in the file and of the keys and values before it; for
one of prefill, a multiplication for each weight of the layers. Times of different runs must not be compared: machines
drift. Each line of --json holds commit, CPU, threads and versions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from records import append_lines, facts, show_facts

N_PREFILL = 512
N_DECODE = 24
CONTEXTS = (64, 2048)
N_CTX = 2304
CACHE_TYPE = "f16"
"""Of both sides; llama.cpp's default."""
TASKS = (f"prefill {N_PREFILL}", *(f"decode at {n}" for n in CONTEXTS))


def token_ids(n: int) -> list[int]:
    """Ids spread over the vocabulary, always the same."""
    return [(i * 7919 + 13) % 30_000 + 100 for i in range(n)]


def minfer_tasks(path: str, threads: int) -> dict[str, Callable[[], float]]:
    import minfer

    model = minfer.load(path, n_ctx=N_CTX, threads=threads, cache_type=CACHE_TYPE)

    def prefill() -> float:
        with model.session() as session:
            start = time.perf_counter()
            session.extend(token_ids(N_PREFILL))
            return N_PREFILL / (time.perf_counter() - start)

    def decode(n_before: int) -> float:
        with model.session() as session:
            session.extend(token_ids(n_before))
            tokens = token_ids(N_DECODE + 2)
            for token in tokens[:2]:
                session.extend([token])
            start = time.perf_counter()
            for token in tokens[2:]:
                session.extend([token])
            return N_DECODE / (time.perf_counter() - start)

    return {TASKS[0]: prefill, **{f"decode at {n}": lambda n=n: decode(n) for n in CONTEXTS}}


def llama_tasks(path: str, threads: int) -> dict[str, Callable[[], float]]:
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=N_CTX, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False, logits_all=False
    )

    def prefill() -> float:
        model.reset()
        start = time.perf_counter()
        model.eval(token_ids(N_PREFILL))
        return N_PREFILL / (time.perf_counter() - start)

    def decode(n_before: int) -> float:
        model.reset()
        model.eval(token_ids(n_before))
        tokens = token_ids(N_DECODE + 2)
        for token in tokens[:2]:
            model.eval([token])
        start = time.perf_counter()
        for token in tokens[2:]:
            model.eval([token])
        return N_DECODE / (time.perf_counter() - start)

    return {TASKS[0]: prefill, **{f"decode at {n}": lambda n=n: decode(n) for n in CONTEXTS}}


def limit_tasks(threads: int) -> dict[str, Callable[[], float]]:
    from limits import dot4_rate, read_bandwidth

    return {"GB/s read": lambda: read_bandwidth(threads), "GMAC/s dot4": lambda: dot4_rate(threads)}


def demand(path: str, task: str) -> float:
    """What a token of a task takes: giga-multiplications, or gigabytes to read."""
    from minfer.engine.cache_types import parse_cache_type, position_bytes
    from minfer.gguf import open_gguf
    from minfer.models import declare_graph

    with open_gguf(path) as file:
        tensors = dict(file.tensors)
        embedding = tensors.pop("token_embd.weight")
        head = tensors.pop("output.weight", embedding)
        if task == TASKS[0]:
            return sum(each.n_values for each in tensors.values() if len(each.shape) == 2) / 1e9
        n_before = int(task.split()[-1])
        kv_bytes = position_bytes(declare_graph(file)[0], parse_cache_type(CACHE_TYPE))
        assert kv_bytes is not None
        return (head.n_bytes + sum(each.n_bytes for each in tensors.values()) + n_before * kv_bytes) / 1e9


def serve(kind: str, path: str, threads: int) -> None:
    """Runs the tasks that are named on stdin, one a line; a number a line on stdout."""
    tasks = {"minfer": minfer_tasks, "llama.cpp": llama_tasks}[kind](path, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        print(tasks[line.strip()](), flush=True)


class Side:
    """One engine in a process of its own. It is idle while the other one works."""

    def __init__(self, python: str, kind: str, path: str, threads: int) -> None:
        command = [python, __file__, path, "--threads", str(threads), "--serve", kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read_until("ready")

    def run(self, task: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(task + "\n")
        self._process.stdin.flush()
        return float(self._read_until(None))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read_until(self, wanted: str | None) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if wanted is None or line.strip() == wanted:
                return line.strip()
        raise SystemExit("a side of the comparison has ended; see its message above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer-python", default=str(Path(__file__).parent / ".peer" / "bin" / "python"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", choices=("minfer", "llama.cpp"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model, arguments.threads)
        return
    sides = {"minfer": Side(sys.executable, "minfer", arguments.model, arguments.threads)}
    if Path(arguments.peer_python).exists():
        sides["llama.cpp"] = Side(arguments.peer_python, "llama.cpp", arguments.model, arguments.threads)
    else:
        print(
            f"no llama-cpp-python at {arguments.peer_python} (benchmarks/install-peer): minfer alone", file=sys.stderr
        )
    speeds: dict[str, dict[str, list[float]]] = {name: {task: [] for task in TASKS} for name in sides}
    limits: dict[str, list[float]] = {}
    limit = limit_tasks(arguments.threads)
    for round_number in range(arguments.runs + 1):
        for task in TASKS:
            for name, side in sides.items():
                speed = side.run(task)
                if round_number:  # the first is for warming up
                    speeds[name][task].append(speed)
        for name, measure in limit.items():
            limits.setdefault(name, []).append(measure())
    for side in sides.values():
        side.close()
    report(arguments, speeds, {name: statistics.median(values) for name, values in limits.items()})


def report(arguments: argparse.Namespace, speeds: dict[str, dict[str, list[float]]], limits: dict[str, float]) -> None:
    known = facts(arguments.model, arguments.threads)
    show_facts(known)
    print(", ".join(f"{name}: {value:.1f}" for name, value in limits.items()))
    lines = []
    for task in TASKS:
        medians = {name: statistics.median(values[task]) for name, values in speeds.items()}
        limit = limits["GMAC/s dot4" if task == TASKS[0] else "GB/s read"]
        needed = demand(arguments.model, task)
        shares = {name: median * needed / limit for name, median in medians.items()}
        figures = {f"{name} tok/s": median for name, median in medians.items()}
        figures |= {f"{name} share of limit": share for name, share in shares.items()}
        sides = (f"{name:>12} {medians[name]:7.1f} tok/s, {100 * shares[name]:3.0f} % of it" for name in medians)
        text = f"{task:<16}" + "".join(sides)
        if "llama.cpp" in medians:
            ratios = [a / b for a, b in zip(speeds["minfer"][task], speeds["llama.cpp"][task], strict=True)]
            ratio = statistics.median(ratios)
            text += f"   ratio {ratio:5.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
            figures["ratio"] = ratio
        print(text)
        lines.append({**known, "task": task, **figures, **limits})
    append_lines(arguments.json, lines)


if __name__ == "__main__":
    main()
