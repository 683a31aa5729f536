"""The outermost layer: every request is counted, and written to the log as one line of JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minfer.serve.errors import ClientGoneError
from minfer.serve.metrics import Metrics
from minfer.serve.record import Outcome, RequestRecord, outcome_of_status, start_record

ACCESS_LOGGER = "minfer.access"


class Observed:
    """Counts and logs requests, and gives each an id, which its answer has as `X-Request-Id`."""

    def __init__(self, app: ASGIApp, metrics: Metrics, endpoints: frozenset[str]) -> None:
        """
        Args:
            endpoints: the paths that are counted by name; all others are counted together, so that nobody can make
                the metrics grow.
        """
        self._app = app
        self._metrics = metrics
        self._endpoints = endpoints
        self._logger = logging.getLogger(ACCESS_LOGGER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = start_record(scope)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.id
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientGoneError:
            record.outcome = Outcome.CANCELLED
        except BaseException:
            record.outcome = Outcome.ERROR
            raise
        finally:
            self._end(scope, record)

    def _end(self, scope: Scope, record: RequestRecord) -> None:
        outcome = record.outcome or outcome_of_status(record.status or 500)
        endpoint = scope["path"] if scope["path"] in self._endpoints else "other"
        self._metrics.note(endpoint, outcome, record)
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info("%s", json.dumps(_line(scope, record, outcome), ensure_ascii=False))


def _line(scope: Scope, record: RequestRecord, outcome: Outcome) -> dict[str, Any]:
    client = scope.get("client")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": record.id,
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": record.status,
        "outcome": outcome.value,
        "duration_s": round(record.age_s, 4),
    }
    if record.n_prompt_tokens:
        line |= {
            "n_prompt_tokens": record.n_prompt_tokens,
            "n_cached_tokens": record.n_cached_tokens,
            "n_generated_tokens": record.n_generated_tokens,
            "queue_s": _rounded(record.queue_s),
            "first_token_s": _rounded(record.first_token_s),
            "finish": record.finish_reasons,
        }
    if record.error is not None:
        line["error"] = record.error
    if record.prompt is not None:
        line["prompt"] = record.prompt
    return line


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
