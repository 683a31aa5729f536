"""Calls from pages of other origins: what a browser is told of whether they may.

A page of an allowed origin may call whatever there is with whatever headers it likes: what they mean is for the routes
to say, and which of them clients send changes with every release of theirs. A page of any other origin is told nothing,
so its browser shows it no answer, and sends nothing of its that needs asking first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minfer.serve.errors import ApiError

ANY_ORIGIN: Final = "*"
_EXPOSED: Final = "X-Request-Id, Retry-After, WWW-Authenticate"
"""what a page may read of an answer's headers, besides those that it always may"""
_MAX_AGE_S: Final = 600
_ASKED: Final = "access-control-request-"


class Cors:
    """Answers the questions that browsers ask first, and marks answers that a page may see."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """
        Args:
            origins: as browsers send them, or `*` for all.
        """
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        origin = headers.get("origin") if headers is not None else None
        if headers is None or origin is None:
            await self._app(scope, receive, send)
            return
        is_allowed = ANY_ORIGIN in self._origins or origin in self._origins
        if scope["method"] == "OPTIONS" and f"{_ASKED}method" in headers:
            await self._preflight(headers, origin, is_allowed)(scope, receive, send)
            return

        async def marking(message: Message) -> None:
            if message["type"] == "http.response.start":
                marked = MutableHeaders(scope=message)
                marked.add_vary_header("Origin")
                if is_allowed:
                    marked["Access-Control-Allow-Origin"] = origin
                    marked["Access-Control-Expose-Headers"] = _EXPOSED
            await send(message)

        await self._app(scope, receive, marking)

    def _preflight(self, asked: Headers, origin: str, is_allowed: bool) -> Response:
        vary = {"Vary": "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"}
        if not is_allowed:
            message = f"pages of {origin} may not call this server; start it with --cors-origin {origin} to let them"
            return ApiError(403, message, "unknown_origin", headers=vary).response()
        answer = {
            **vary,
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": asked[f"{_ASKED}method"],
            "Access-Control-Max-Age": str(_MAX_AGE_S),
        }
        if wanted := asked.get(f"{_ASKED}headers"):
            answer["Access-Control-Allow-Headers"] = wanted
        if asked.get(f"{_ASKED}private-network") == "true":
            answer["Access-Control-Allow-Private-Network"] = "true"
        return Response(status_code=204, headers=answer)
