"""Who may come in: by API key, and by the name under which they call this server."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from minfer.serve.config import ServerConfig
from minfer.serve.errors import ApiError

PUBLIC_PATHS: Final = frozenset({"/", "/health", "/docs", "/openapi.json"})
"""What needs no key: nothing here tells or does anything but the page, whose files lie below `PUBLIC_PREFIX`."""
PUBLIC_PREFIX: Final = "/page/"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class KeyGuard:
    """Asks for an API key as `Authorization: Bearer KEY`. How long it takes tells nothing about the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_public(scope["path"]):
            self._check(Headers(scope=scope).get("authorization", ""))
        await self._app(scope, receive, send)

    def _check(self, header: str) -> None:
        scheme, _, given = header.partition(" ")
        # Every key is compared, and none of them early out.
        matches = [hmac.compare_digest(given.strip().encode(), key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "an API key is needed, as the header Authorization: Bearer KEY"
            if header:
                message += "; the one that came is not this server's"
            raise ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


class HostGuard:
    """Refuses requests addressed to a name that is not this server's.

    A page on the web can make its own name point to this machine, and then call the server as if it were its own; such
    requests bear the page's name.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str], *, takes_nameless: bool) -> None:
        """
        Args:
            takes_nameless: whether requests without a name, which HTTP/1.0 has and no browser sends, may come in.
        """
        self._app = app
        self._names = names
        self._takes_nameless = takes_nameless

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = Headers(scope=scope).get("host")
            is_nameless = header is None and scope["http_version"] == "1.0"
            name = host_name(header or "")
            if name not in self._names and not (is_nameless and self._takes_nameless):
                raise ApiError(
                    403,
                    f"this server does not go by the name {name!r}; start it with --allowed-host to add one",
                    "unknown_host",
                )
        await self._app(scope, receive, send)


def served_names(config: ServerConfig) -> frozenset[str] | None:
    """The host names that are answered; None where all are."""
    if config.allowed_hosts:
        return frozenset(name.lower() for name in config.allowed_hosts) | _LOOPBACK_NAMES
    return _LOOPBACK_NAMES | {config.host} if config.is_loopback else None


def host_name(header: str) -> str:
    """The name in a Host header, without its port and without an address's brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIX)
