"""Connections that don't keep the server waiting for ever: HTTP/1.1 by uvicorn and h11, with bounds on silence."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from minfer.serve.config import Limits


def bounded_protocol(limits: Limits) -> type[H11Protocol]:
    """A protocol for uvicorn that closes connections whose client is silent for longer than the limits allow."""

    class BoundedProtocol(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            _watch_peer(transport.get_extra_info("socket"), limits)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._await_head()  # nothing is being answered, so this was a part of a request's head
            else:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.head_timeout_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

    return BoundedProtocol


def _watch_peer(peer: socket.socket | None, limits: Limits) -> None:
    """Has the system end a connection whose other side is gone, or no longer takes what is sent."""
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * limits.send_timeout_s))
