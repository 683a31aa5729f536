"""What the schema of the API says beyond what the models of requests and answers say."""

from __future__ import annotations

from typing import Any, Final

from minfer.serve.errors import ErrorResponse

Responses = dict[int | str, dict[str, Any]]

JSON_OR_EVENTS: Final = {"text/event-stream": {"schema": {"type": "string"}}}
"""The other form of an answer: server-sent events."""


def error_responses(*statuses: int) -> Responses:
    """Declares statuses whose body is an error in OpenAI's shape."""
    return {status: {"model": ErrorResponse} for status in statuses}


COMMON_ERRORS: Final = error_responses(401, 403, 500)
BODY_ERRORS: Final = COMMON_ERRORS | error_responses(400, 408, 413, 415, 503)
GENERATION_ERRORS: Final = BODY_ERRORS | error_responses(404)
