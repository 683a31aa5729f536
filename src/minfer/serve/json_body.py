"""Request bodies: JSON in UTF-8, taken strictly, of bounded size, within bounded time."""

from __future__ import annotations

import asyncio
import email.message
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, get_type_hints

import pydantic_core
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from minfer.serve.config import Limits
from minfer.serve.errors import ApiError, ClientGoneError, invalid
from minfer.serve.validation import validation_error

_PATIENCE: Final = 4
"""So many times the limit is read and thrown away, since few clients listen for an answer while they still send."""

_ESCAPE: Final = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.", re.DOTALL)
"""An escape in JSON; both halves of a pair of surrogates count as one."""


class JsonRoute(APIRoute):
    """A route whose body, where it has one, is read by `read_json`; all else is FastAPI's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        body_type: type[BaseModel] = get_type_hints(self.endpoint)["body"]

        async def handle_json(request: Request) -> Response:
            limits: Limits = request.app.state.server.config.limits
            value = await read_json(request, limits)
            try:
                return await handle(_ParsedRequest(request.scope, request.receive, value))
            except RequestValidationError as error:
                raise validation_error(error, body_type) from None

        return handle_json


class _ParsedRequest(Request):
    """A request whose body has been read."""

    def __init__(self, scope: Scope, receive: Receive, value: Any) -> None:
        super().__init__(scope, receive)
        self._value = value

    async def body(self) -> bytes:
        return b"read"  # FastAPI asks whether there is one, and then for the value

    async def json(self) -> Any:
        return self._value


async def read_json(request: Request, limits: Limits) -> Any:
    """The body's value.

    Raises:
        ApiError: too large (413), too slow (408), no JSON type (415), or no JSON (400).
        ClientGoneError: the client went away.
    """
    message = email.message.Message()
    message["content-type"] = request.headers.get("content-type", "")
    if message.get_content_type() != "application/json":
        # A page on the web can make a browser post other types to this machine without asking, but not this one.
        raise ApiError(415, "the Content-Type must be application/json", "unsupported_media_type")
    if message.get_content_charset("utf-8") not in ("utf-8", "utf8"):
        raise ApiError(415, "the body must be in UTF-8", "unsupported_media_type")
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(415, "compressed bodies are not supported", "unsupported_media_type")
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            data = await _read(request, limits.max_body_bytes)
    except TimeoutError:
        message_ = f"the body did not arrive within {limits.body_timeout_s:g} s"
        raise ApiError(408, message_, "request_timeout", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    if not data:
        raise invalid("the body is empty; it must be a JSON object", code="invalid_json")
    try:
        return pydantic_core.from_json(bytes(data), allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise invalid(f"the body is not valid JSON: {_fault(bytes(data), error)}", code="invalid_json") from None


def _fault(data: bytes, error: ValueError) -> str:
    """Why a body can't be read: the parser's words, but for faults that they name in a way of their own."""
    try:
        text = data.decode()
    except UnicodeDecodeError as undecodable:
        return f"byte {undecodable.start}, 0x{data[undecodable.start]:02x}, is not UTF-8"
    if text.startswith("\ufeff"):
        return "it begins with a byte order mark; JSON begins with its first value"
    half = next((e for e in _ESCAPE.finditer(text) if re.fullmatch(r"\\u[dD][89a-fA-F]\w\w", e[0])), None)
    if "hex escape" in str(error) and half is not None:
        return (
            f"the escape {half[0]} at character {half.start()} is half of a character, without its other half: most "
            "likely a text was cut in the middle of an emoji or the like"
        )
    return str(error)


async def _read(request: Request, max_bytes: int) -> bytearray:
    data, n_bytes = bytearray(), 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes <= max_bytes:
            data += chunk
        elif n_bytes > _PATIENCE * max_bytes:
            break
    if n_bytes > max_bytes:
        message = f"the body is larger than {max_bytes} bytes"
        raise ApiError(413, message, "request_too_large", headers={"Connection": "close"})
    return data
