"""A server with a fake engine, running in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from minfer.serve import ServerConfig, create_app
from minfer.serve.engine_protocol import Engine
from minfer.serve.lifecycle import Server, listen

TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    app: FastAPI
    server: Server
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: object) -> httpx.Client:
        """A client that closes its connection after each request, so that stopping the server waits for nobody."""
        none_kept = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(base_url=self.url, timeout=TIMEOUT_S, limits=none_kept, **options)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()


@contextmanager
def running(config: ServerConfig, load: Callable[[], Engine], *, wait: bool = True) -> Iterator[Running]:
    """Runs a server until the end of the block. `wait`: until its engine is loaded."""
    app = create_app(config)
    server = Server(app, load)
    listener = listen(config)

    def run() -> None:
        server.run_until_stopped(listener)

    thread = threading.Thread(target=run, name="server", daemon=True)
    thread.start()
    try:
        if wait:
            assert server.ready.wait(TIMEOUT_S)
        yield Running(app, server, listener.getsockname()[1], thread)
    finally:
        server.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def metric(text: str, name: str, **labels: str) -> float:
    """The value of one line of Prometheus' text."""
    want = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    start = f"{name}{{{want}}} " if want else f"{name} "
    for line in text.splitlines():
        if line.startswith(start):
            return float(line.removeprefix(start))
    raise AssertionError(f"no {start!r} in the metrics")
