"""What is remembered of one HTTP request while it is answered, for its line in the access log and for the metrics."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from starlette.types import Scope

_KEY = "minfer_record"


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    INVALID = "invalid"
    """refused with a status of 400 to 499"""
    OVERLOADED = "overloaded"
    """refused with 503: the queue is full, or the server is loading or stopping"""
    CANCELLED = "cancelled"
    """the client went away"""
    ERROR = "error"
    """the fault is the server's"""


def outcome_of_status(status: int) -> Outcome:
    """What a status says of a request that was answered."""
    if status < 400:
        return Outcome.OK
    if status < 500:
        return Outcome.INVALID
    return Outcome.OVERLOADED if status == 503 else Outcome.ERROR


@dataclass
class RequestRecord:
    """The record of a request; whoever learns something writes it down here."""

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    started_s: float = field(default_factory=time.perf_counter)
    status: int | None = None
    outcome: Outcome | None = None
    """where the status does not tell it"""
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_generated_tokens: int = 0
    queue_s: float | None = None
    first_token_s: float | None = None
    """from the request's arrival until its first token"""
    per_token_s: list[float] = field(default_factory=list)
    """of each answer of more than one token: the mean time from one token to the next"""
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None
    """the code of the error, where there was one"""
    prompt: Any = None
    """what was asked for, only where it is to be logged"""

    @property
    def age_s(self) -> float:
        return time.perf_counter() - self.started_s


def start_record(scope: Scope) -> RequestRecord:
    """Gives a request a record."""
    record = RequestRecord()
    scope.setdefault("state", {})[_KEY] = record
    return record


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request."""
    record: RequestRecord = scope["state"][_KEY]
    return record
