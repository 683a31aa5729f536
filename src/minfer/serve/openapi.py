"""What the schema of the API says beyond what the models of requests and answers say."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from minfer.serve.errors import ErrorResponse
from minfer.serve.schema_chat import ChatChunk

Responses = dict[int | str, dict[str, Any]]

JSON_OR_EVENTS: Final[dict[str, dict[str, Any]]] = {"text/event-stream": {}}
"""The other form of an answer: server-sent events, whose schema has no place here (the descriptions name it)."""


def error_responses(*statuses: int) -> Responses:
    """Declares statuses whose body is an error in OpenAI's shape."""
    return {status: {"model": ErrorResponse} for status in statuses}


COMMON_ERRORS: Final = error_responses(401, 403, 500)
BODY_ERRORS: Final = COMMON_ERRORS | error_responses(400, 408, 413, 415, 503)
GENERATION_ERRORS: Final = BODY_ERRORS | error_responses(404)


def describe(app: FastAPI) -> None:
    """Has an application describe itself as it is: no status 422, the events of streams, and the API key."""

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            _complete(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]  # FastAPI's own way to extend a schema


def _complete(schema: dict[str, Any]) -> None:
    components = schema["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    chunk = ChatChunk.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
    components["schemas"] |= {**chunk.pop("$defs"), "ChatChunk": chunk} | components["schemas"]
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"key": []}, {}]
    for methods in schema["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            operation["responses"] = dict(sorted(operation["responses"].items()))
