#!/usr/bin/env python3
"""Many clients at once: minfer's server against one client, llama-cpp-python's server, and a long prompt beside.

usage: serve.py MODEL.gguf [--clients N] [--prompt-tokens N] [--max-tokens N] [--rounds N] [--turns N]
                           [--peer-python PYTHON] [--threads N] [--json FILE]

Three things, over HTTP on the loopback interface:

- throughput: tokens a second (prompt and generated) of one client, and of N clients who each send a request after the
  other; prompts are random words that no two requests share. One and N take turns, since machines drift: the figures
  are medians, and the ratio is the median of the turns' ratios, with the lowest and the highest;
- the same load on `python -m llama_cpp.server` of PYTHON, if it is there (benchmarks/install-peer makes one);
- gaps: the 95th percentile of the time between two tokens of a stream, undisturbed and while a prompt of 1,500 tokens
  is read beside it.

The servers run one after the other, never together, on the same threads. Ratios are of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import socket
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from records import append_lines, facts, show_facts

try:
    import httpx
except ModuleNotFoundError:
    raise SystemExit("error: this benchmark needs httpx: .venv/bin/pip install httpx") from None

N_CTX = 4096
LONG_PROMPT_TOKENS = 1500
STREAM_TOKENS = 300
START_S = 180.0
REQUEST_S = 600.0


@dataclass(frozen=True)
class Load:
    """What clients ask for."""

    n_clients: int
    n_rounds: int
    n_prompt_tokens: int
    max_tokens: int
    n_turns: int


@contextmanager
def running(command: list[str], port: int, ready: str) -> Iterator[str]:
    """A server process; the address of its API once `ready` answers."""
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while not _answers(address + ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start: {' '.join(command)}")
                time.sleep(0.2)
            yield address
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Prompts:
    """Random letters between spaces, one token each; no two prompts begin alike."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self, n_tokens: int) -> str:
        return " ".join(self._random.choices(string.ascii_letters, k=n_tokens))


async def throughput(address: str, load: Load, n_clients: int, prompts: Prompts) -> float:
    """Tokens a second, those of the prompts and those generated, as the server counts them."""
    limits = httpx.Limits(max_connections=n_clients)
    async with httpx.AsyncClient(base_url=address, timeout=REQUEST_S, limits=limits) as client:
        model = await _model(client)

        async def one() -> int:
            total = 0
            for _ in range(load.n_rounds):
                body = _body(model, prompts.next(load.n_prompt_tokens), load.max_tokens)
                answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
                total += answer["usage"]["total_tokens"]
            return total

        start = time.perf_counter()
        totals = await asyncio.gather(*(one() for _ in range(n_clients)))
        return sum(totals) / (time.perf_counter() - start)


async def gaps(address: str, prompts: Prompts) -> tuple[float, float]:
    """The 95th percentile of the seconds between two tokens: undisturbed, and while a long prompt is read."""
    async with httpx.AsyncClient(base_url=address, timeout=REQUEST_S) as client:
        times: list[float] = []
        model = await _model(client)

        async def stream() -> None:
            body = {**_body(model, prompts.next(32), STREAM_TOKENS), "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        times.append(time.perf_counter())  # noqa: PERF401  # `disturb` looks at it meanwhile

        async def disturb() -> tuple[float, float]:
            while len(times) < STREAM_TOKENS // 3:
                await asyncio.sleep(0.005)
            start = time.perf_counter()
            body = _body(model, prompts.next(LONG_PROMPT_TOKENS), 1)
            (await client.post("/v1/completions", json=body)).raise_for_status()
            return start, time.perf_counter()

        _, (start, end) = await asyncio.gather(stream(), disturb())
        between = [(a, b - a) for a, b in itertools.pairwise(times)]
        calm = [gap for at, gap in between if at < start][5:]
        disturbed = [gap for at, gap in between if start <= at <= end]
        return _percentile_95(calm), _percentile_95(disturbed)


async def _model(client: httpx.AsyncClient) -> str:
    """What the server calls its model."""
    name: str = (await client.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
    return name


def _percentile_95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "seed": 1}


def measure(command: list[str], port: int, ready: str, load: Load, *, with_gaps: bool) -> dict[str, float]:
    with running(command, port, ready) as address:
        prompts = Prompts(seed=1)
        asyncio.run(throughput(address, Load(1, 1, 64, 8, 1), 1, prompts))  # warms up
        turns = [
            [asyncio.run(throughput(address, load, n_clients, prompts)) for n_clients in (1, load.n_clients)]
            for _ in range(load.n_turns)
        ]
        ratios = [many / one for one, many in turns]
        result = {
            "one client": statistics.median(one for one, _ in turns),
            f"{load.n_clients} clients": statistics.median(many for _, many in turns),
            "ratio": statistics.median(ratios),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
        }
        if with_gaps:
            result["gap_s"], result["disturbed_gap_s"] = asyncio.run(gaps(address, prompts))
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--peer-python", default=str(Path(__file__).parent / ".peer" / "bin" / "python"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = Load(arguments.clients, arguments.rounds, arguments.prompt_tokens, arguments.max_tokens, arguments.turns)
    threads, port = str(arguments.threads), free_port()
    ours = [
        *(sys.executable, "-m", "minfer", "serve", arguments.model, "--port", str(port)),
        *("--threads", threads, "--n-ctx", str(N_CTX), "--parallel", str(load.n_clients)),
    ]
    results = {"minfer": measure(ours, port, "/health", load, with_gaps=True)}
    if Path(arguments.peer_python).exists():
        port = free_port()
        peer = [
            *(arguments.peer_python, "-m", "llama_cpp.server", "--model", arguments.model, "--port", str(port)),
            *("--n_threads", threads, "--n_threads_batch", threads, "--n_ctx", str(N_CTX)),
        ]
        results["llama-cpp-python"] = measure(peer, port, "/v1/models", load, with_gaps=False)
    else:
        print(
            f"no llama-cpp-python at {arguments.peer_python} (benchmarks/install-peer): minfer alone", file=sys.stderr
        )
    report(arguments, load, results)


def report(arguments: argparse.Namespace, load: Load, results: dict[str, dict[str, float]]) -> None:
    known = facts(arguments.model, arguments.threads)
    show_facts(known)
    many = f"{load.n_clients} clients"
    for name, figures in results.items():
        print(f"{name:<18}one client {figures['one client']:7.1f} tok/s   {many} {figures[many]:7.1f} tok/s")
    ours = results["minfer"]
    print(f"{many} / one client: {ours['ratio']:.2f} ({ours['lowest_ratio']:.2f} to {ours['highest_ratio']:.2f})")
    if "llama-cpp-python" in results:
        print(f"minfer / llama-cpp-python with {many}: {ours[many] / results['llama-cpp-python'][many]:.2f}")
    calm, disturbed = ours["gap_s"], ours["disturbed_gap_s"]
    print(f"95th percentile of the time between tokens: {1000 * calm:.1f} ms, undisturbed;")
    print(f"beside a prompt of {LONG_PROMPT_TOKENS} tokens: {1000 * disturbed:.1f} ms, {disturbed / calm:.2f} times")
    append_lines(arguments.json, [{**known, "load": vars(load), "engine": n, **f} for n, f in results.items()])


if __name__ == "__main__":
    main()
