"""Errors as clients see them: OpenAI's shape, whatever went wrong and wherever."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
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


def context_overflow(n_prompt_tokens: int, max_tokens: int | None, n_ctx: int, param: str) -> ApiError:
    """400: the prompt, or the prompt and what may be generated, is longer than the context."""
    wanted = "no room is left for an answer" if max_tokens is None else f"max_tokens is {max_tokens}"
    return ApiError(
        400,
        f"the context has {n_ctx} positions; the prompt has {n_prompt_tokens} tokens, and {wanted}",
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
            return ApiError(400, str(error), "context_length_exceeded", counts=counts)
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
    """Makes every error of the application leave in OpenAI's shape."""

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

    def validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return answer(request, _validation_error(error))

    app.add_exception_handler(RequestValidationError, validation)
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


def _validation_error(error: RequestValidationError) -> ApiError:
    """The first of the things that pydantic found, with the field's name as the client knows it."""
    first = _most_telling(error.errors(), error.body)
    kind = first["type"]
    path = _path(first, error.body)
    param = ".".join(map(str, path)) or None
    named = f"{param}: " if param else ""
    match kind:
        case "extra_forbidden":
            return invalid(f"{named}unknown field, or one that is not supported", param, "unknown_parameter")
        case "missing":
            return invalid(f"{named}a value is required", param, "missing_required_parameter")
        case "value_error":
            return invalid(f"{named}{first['ctx']['error']}", param, "invalid_value")
        case _:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
            message = first["msg"][:1].lower() + first["msg"][1:]
            return invalid(f"{named}{message}", param, code)


def _most_telling(errors: Any, body: object) -> Mapping[str, Any]:
    """Each branch of a union may complain; the one that got furthest into the body is the one that was meant."""

    def progress(error: Mapping[str, Any]) -> tuple[int, bool, int]:
        path = _path(error, body)
        indices = [step for step in path if isinstance(step, int)]
        return len(path), not error["type"].endswith("_type"), indices[-1] if indices else -1

    candidates: list[Mapping[str, Any]] = list(errors)
    return max(candidates, key=progress)


def _path(error: Mapping[str, Any], body: object) -> list[int | str]:
    """The part of pydantic's location that leads through the body: branches of unions are named in it too."""
    location = error["loc"][1:]
    path: list[int | str] = []
    current = body
    for index, step in enumerate(location):
        if (isinstance(current, dict) and step in current) or (
            isinstance(current, list) and isinstance(step, int) and step < len(current)
        ):
            current = current[step]
        elif error["type"] != "missing" or index < len(location) - 1:
            continue  # the name of a branch
        path.append(step)
    return path
