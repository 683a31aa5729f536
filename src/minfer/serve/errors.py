"""Errors as clients see them: OpenAI's shape, whatever went wrong and wherever."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minfer.errors import (
    ContextError,
    MinferError,
    ParameterError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
)
from minfer.serve.engine_protocol import EngineClosedError, QueueFullError
from minfer.serve.record import record_of

_logger = logging.getLogger("minfer.serve")

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    n_prompt_tokens: int | None = None
    n_positions: int | None = None
    n_ctx: int | None = None


class ErrorResponse(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorBody


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is answered with an error."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    type: str = INVALID_REQUEST
    headers: dict[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.counts}
        return {"error": error}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request can't be understood, or asks for what is not supported."""
    return ApiError(400, message, code, param)


def unavailable(message: str, code: str, retry_after_s: float) -> ApiError:
    """503: the same request may succeed later."""
    headers = {"Retry-After": str(max(1, math.ceil(retry_after_s)))}
    return ApiError(503, message, code, type=SERVER_ERROR, headers=headers)


def context_phrase(n_ctx: int) -> str:
    """How OpenAI begins to say that a request is longer than the context."""
    return f"This model's maximum context length is {n_ctx} tokens."


def context_overflow(n_prompt_tokens: int, max_tokens: int | None, n_ctx: int, param: str) -> ApiError:
    """400: the prompt, or the prompt and what may be generated, is longer than the context.

    The message begins as OpenAI's does, since clients that shorten a conversation recognise it by its words.
    """
    if max_tokens is None:
        wanted = f"your prompt has {n_prompt_tokens} tokens, which leaves no room for an answer. Shorten the prompt"
    else:
        wanted = (
            f"you requested {n_prompt_tokens + max_tokens} tokens: {n_prompt_tokens} in the prompt and {max_tokens} "
            "as max_tokens. Shorten the prompt, or lower max_tokens"
        )
    return ApiError(
        400,
        f"{context_phrase(n_ctx)} However, {wanted}; or start the server with a larger --n-ctx.",
        "context_length_exceeded",
        param,
        counts={"n_prompt_tokens": n_prompt_tokens, "n_ctx": n_ctx},
    )


def api_error(error: Exception) -> ApiError:
    """The answer to any error. What is no fault of the client's is logged, and not told in detail."""
    match error:
        case ApiError():
            return error
        case QueueFullError():
            return unavailable(str(error), "queue_full", error.retry_after_s)
        case EngineClosedError():
            return unavailable("the server is stopping", "stopping", 1)
        case ContextError():
            counts = {"n_positions": error.n_positions, "n_ctx": error.n_ctx}
            message = f"{context_phrase(error.n_ctx)} However, {error}."
            return ApiError(400, message, "context_length_exceeded", counts=counts)
        case UnsupportedError():
            return invalid(str(error), code="unsupported")
        case ParameterError() | TemplateError() | TokenizerError():
            return invalid(str(error), code="invalid_value")
        case MinferError():
            _logger.error("the engine failed: %s", error)
            return ApiError(500, str(error), "engine_error", type=SERVER_ERROR)
        case _:
            _logger.error("internal error", exc_info=error)
            return ApiError(500, "internal error; the server's log has more", "internal_error", type=SERVER_ERROR)


def install_error_handlers(app: FastAPI) -> None:
    """Makes the errors of the application leave in OpenAI's shape."""

    def answer(request: Request, error: ApiError) -> JSONResponse:
        record_of(request.scope).error = error.code
        return error.response()

    def other(request: Request, error: Exception) -> JSONResponse:
        return answer(request, api_error(error))

    def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase
        message = f"{phrase}: {request.method} {request.url.path}"
        code = "_".join(phrase.lower().split())
        return answer(request, ApiError(error.status_code, message, code, headers=dict(error.headers or {})))

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ApiError, other)
    app.add_exception_handler(MinferError, other)


class ErrorBoundary:
    """Around all that may fail: what no handler foresaw becomes an answer, and no traceback leaves the server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGoneError:
            raise  # there is nobody to answer
        except Exception as error:
            answer = api_error(error)
            record_of(scope).error = answer.code
            if started:
                raise  # half an answer is out: the connection is cut, so that nobody takes it for a whole one
            await answer.response()(scope, receive, send)
