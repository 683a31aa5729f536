"""Requests made up from the server's own schema, valid and not: no answer but those that the schema promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from minfer.serve import ServerConfig, create_app
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running, metric, running

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]


@pytest.fixture(scope="module")
def fuzzed(qwen: Tokenizer) -> Iterator[Running]:
    """A server of its own, whose answers are short."""
    engine = FakeEngine(qwen, n_ctx=128)
    with running(ServerConfig(port=0), lambda: engine) as server:
        yield server
        with server.client() as api:
            assert api.get("/health").json() == {"status": "ok"}
            text = api.get("/metrics").text
            assert metric(text, "minfer_kv_pages", state="used") == 0
            assert metric(text, "minfer_active_requests") == metric(text, "minfer_queue_depth") == 0


OPERATIONS = {
    operation.ok().label: operation.ok()
    for operation in schemathesis.openapi.from_dict(create_app(ServerConfig()).openapi()).get_all_operations()
}


CASES = [
    (name, mode)
    for name, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or operation.method == "post"  # nothing else has a body to be wrong
]


# What a template leaves out of a made-up conversation is told once, in the log of the server.
@pytest.mark.filterwarnings("default::minfer.errors.MinferWarning")
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_answer_is_one_that_the_schema_promises(fuzzed: Running, name: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[name]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=fuzzed.url, checks=CHECKS, timeout=TIMEOUT_S)

    check()


def test_the_schema_is_valid(fuzzed: Running) -> None:
    with httpx.Client() as client:
        made = client.get(f"{fuzzed.url}/openapi.json").json()
    references = list(_values(made, "$ref"))
    assert len(references) > 50
    for reference in references:
        assert reference.rpartition("/")[2] in made["components"]["schemas"]


def _values(node: Any, key: str) -> Iterator[Any]:
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        for value in node.values():
            yield from _values(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, key)
