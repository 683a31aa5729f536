"""What all requests share: the engine once it is loaded, the configuration, the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

import anyio.to_thread
from fastapi import Request

from minfer.serve.config import ServerConfig
from minfer.serve.engine_protocol import Engine
from minfer.serve.errors import SERVER_ERROR, ApiError, unavailable
from minfer.serve.metrics import Metrics
from minfer.version import __version__

T = TypeVar("T")

FINGERPRINT: Final = f"minfer-{__version__}"
_N_TEXT_THREADS: Final = 2
_LOADING_RETRY_S: Final = 5.0


class Health(StrEnum):
    """What the server is up to."""

    LOADING = "loading"
    OK = "ok"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass
class ServerState:
    """The state of a server."""

    config: ServerConfig
    metrics: Metrics
    engine: Engine | None = None
    is_stopping: bool = False
    started: int = field(default_factory=lambda: int(time.time()))
    """when the server began, in seconds since 1970"""
    _text_limiter: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(_N_TEXT_THREADS))

    @property
    def health(self) -> Health:
        if self.is_stopping:
            return Health.STOPPING
        if self.engine is None:
            return Health.LOADING
        return Health.OK if self.engine.failure is None else Health.FAILED

    def set_engine(self, engine: Engine) -> None:
        """The engine is ready."""
        self.metrics.watch(engine)
        self.engine = engine

    def ready_engine(self) -> Engine:
        """The engine, for a new request.

        Raises:
            ApiError: it is not loaded yet, or the server is stopping (503), or it has failed (500).
        """
        if self.engine is None:
            raise unavailable("the model is loading", "loading", _LOADING_RETRY_S)
        if self.is_stopping:
            raise unavailable("the server is stopping", "stopping", _LOADING_RETRY_S)
        if self.engine.failure is not None:
            raise ApiError(500, "the engine has failed; the server's log says why", "engine_error", type=SERVER_ERROR)
        return self.engine

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs work on text, which may take a while, beside the event loop."""
        return await anyio.to_thread.run_sync(work, limiter=self._text_limiter)


def server_state(request: Request) -> ServerState:
    """The state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
