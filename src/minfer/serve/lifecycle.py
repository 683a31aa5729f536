"""From the first connection to the last: listening while the model loads, serving, and draining."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from minfer.errors import ParameterError
from minfer.serve.config import ServerConfig
from minfer.serve.connections import bounded_protocol
from minfer.serve.engine_protocol import Engine
from minfer.serve.state import ServerState

_logger = logging.getLogger("minfer.serve")
_ABORT_GRACE_S = 5.0


class Server(uvicorn.Server):
    """A server over an application of `create_app`, whose engine is loaded while it listens already.

    Told to stop, it takes no more connections, lets running requests end for `drain_s`, and then fails the rest.
    """

    def __init__(self, app: FastAPI, load_engine: Callable[[], Engine]) -> None:
        self._state: ServerState = app.state.server
        limits = self._state.config.limits
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(limits),
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=math.ceil(limits.idle_timeout_s),
                timeout_graceful_shutdown=int(limits.drain_s + _ABORT_GRACE_S) + 1,
            )
        )
        self._load_engine = load_engine
        self._lock = threading.Lock()
        self._has_ended = False
        self.load_error: Exception | None = None
        self.ready = threading.Event()
        """set when the engine is loaded, or could not be"""

    def run_until_stopped(self, listener: socket.socket) -> None:
        """Serves on a socket that listens, until a signal, `stop`, or a failure to load.

        Raises:
            Exception: what `load_engine` raised.
        """
        loader = threading.Thread(target=self._load, name="minfer-load", daemon=True)
        try:
            with _quiet_end():
                loader.start()
                self.run(sockets=[listener])
        finally:
            with self._lock:
                self._has_ended = True
            if self._state.engine is not None:
                self._state.engine.close()
        if self.load_error is not None:
            raise self.load_error

    def stop(self) -> None:
        """Begins to drain; from any thread."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains: uvicorn's own, with an end to the engine's work after the limit."""
        self._state.is_stopping = True
        timer = threading.Timer(self._state.config.limits.drain_s, self._abort)
        timer.daemon = True
        timer.start()
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _load(self) -> None:
        try:
            engine = self._load_engine()
        except Exception as error:  # noqa: BLE001  # it is raised again where the server was started
            self.load_error = error
            self.should_exit = True
        else:
            with self._lock:
                comes_too_late = self._has_ended
                if not comes_too_late:
                    self._state.set_engine(engine)
            if comes_too_late:
                engine.close()
        self.ready.set()

    def _abort(self) -> None:
        _logger.warning("requests are still running after the time to drain: they end now")
        if self._state.engine is not None:
            self._state.engine.close()


def listen(config: ServerConfig) -> socket.socket:
    """A socket that listens at the address of the configuration.

    Raises:
        ParameterError: there is no such address here, or something listens there already.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":  # elsewhere it would let several servers share the port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ParameterError(f"can't listen on {config.host} port {config.port}: {error.strerror}") from None
    return listener


@contextmanager
def _quiet_end() -> Iterator[None]:
    """Uvicorn raises the signals that ended it once more when it is done; by then we are done with them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ignore(number: int, frame: FrameType | None) -> None:
        pass

    before = {number: signal.signal(number, ignore) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
