#!/usr/bin/env python3
"""An hour's worth of small requests to the server: does its memory stay flat, and are all pages free in the end?

usage: soak.py [MODEL] [--requests N] [--clients N] [--json FILE]

Chats of one or two short turns, completions, streams that are read and streams that are left half-way, and requests
that are refused, in random order. Resident memory is read after each tenth. The first half is warm-up: finished
sequences are kept until their budget is full. Exit code 1 if the rest grew by more than `MAX_GROWTH_BYTES`, or if
pages are in use in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from records import append_lines, facts, show_facts

from serve import free_port, running

try:
    import httpx
except ModuleNotFoundError:
    raise SystemExit("error: this benchmark needs httpx: .venv/bin/pip install httpx") from None

N_TENTHS = 10
N_WARM_UP = 5
MAX_GROWTH_BYTES = 16 << 20
REQUEST_S = 120.0


def memory_bytes(port: int) -> int:
    """Resident memory of the server that listens on a port."""
    command = ["pgrep", "-f", f"minfer serve .*--port {port}"]
    pid = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def one_request(client: httpx.AsyncClient, dice: random.Random) -> None:
    """One of what clients do."""
    words = " ".join(dice.choices(("red", "tea", "sun", "cat", "map", "ice"), k=dice.randint(1, 40)))
    body: dict[str, Any] = {"model": "default", "max_tokens": dice.randint(1, 12)}
    chat = {**body, "messages": [{"role": "user", "content": words}]}
    match dice.randrange(5):
        case 0:
            (await client.post("/v1/chat/completions", json=chat)).raise_for_status()
        case 1:
            answer = {"role": "assistant", "content": "Yes."}
            more = [*chat["messages"], answer, {"role": "user", "content": "Why?"}]
            (await client.post("/v1/chat/completions", json={**chat, "messages": more})).raise_for_status()
        case 2:
            scored = {**body, "prompt": words, "logprobs": 2, "n": 2}
            (await client.post("/v1/completions", json=scored)).raise_for_status()
        case 3:
            n_wanted = dice.randint(1, 20)
            async with client.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as answer:
                async for _ in answer.aiter_lines():
                    n_wanted -= 1
                    if n_wanted == 0:
                        break
        case _:
            refused = await client.post("/v1/chat/completions", json={**chat, "temperature": -1})
            if refused.status_code != 400:
                raise SystemExit(f"a wrong request got {refused.status_code}")


async def requests(address: str, n: int, n_clients: int, seed: int) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=REQUEST_S) as client:

        async def work(index: int) -> None:
            dice = random.Random(seed * 1000 + index)
            for _ in range(n // n_clients):
                await one_request(client, dice)

        await asyncio.gather(*(work(index) for index in range(n_clients)))


def pages(address: str) -> tuple[float, float, float]:
    """All pages, free ones, and those that finished sequences keep."""
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    values = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
    return tuple(values[f'minfer_kv_pages{{state="{state}"}}'] for state in ("used", "free", "cached"))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="default")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    port = free_port()
    command = [*(sys.executable, "-m", "minfer", "serve", arguments.model, "--port", str(port)), "--alias", "default"]
    with running(command, port, "/health") as address:
        sizes = []
        for tenth in range(N_TENTHS):
            asyncio.run(requests(address, arguments.requests // N_TENTHS, arguments.clients, tenth))
            sizes.append(memory_bytes(port))
            print(
                f"after {(tenth + 1) * arguments.requests // N_TENTHS} requests: {sizes[-1] / 1e6:.1f} MB", flush=True
            )
        n_used, n_free, n_cached = pages(address)
    growth = sizes[-1] - sizes[N_WARM_UP - 1]
    known = facts(arguments.model, len(os.sched_getaffinity(0)))
    show_facts(known)
    print(f"grown since the warm-up: {growth / 1e6:.1f} MB")
    print(f"pages in use {n_used:.0f}, kept {n_cached:.0f}, free {n_free:.0f}")
    append_lines(arguments.json, [{**known, "memory_bytes": sizes, "n_requests": arguments.requests}])
    if growth > MAX_GROWTH_BYTES or n_used:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
