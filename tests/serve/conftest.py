"""One server with a fake engine for most tests, put back to its beginnings before each."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from minfer.serve import Limits, ServerConfig
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine, default_reply
from serve_running import Running, running
from text_vocabularies import real_tokenizer

LIMITS = Limits(max_body_bytes=200_000)


@pytest.fixture(scope="session")
def qwen() -> Tokenizer:
    """A tokenizer whose template knows tools."""
    return real_tokenizer("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def smol() -> Tokenizer:
    """A tokenizer whose template knows no tools."""
    return real_tokenizer("smollm2-135m")


@pytest.fixture(scope="session")
def shared_engine(qwen: Tokenizer) -> FakeEngine:
    return FakeEngine(qwen)


@pytest.fixture(scope="session")
def shared_server(shared_engine: FakeEngine) -> Iterator[Running]:
    config = ServerConfig(port=0, limits=LIMITS, model_aliases=("alias",))
    with running(config, lambda: shared_engine) as server:
        yield server


@pytest.fixture
def engine(shared_engine: FakeEngine) -> Iterator[FakeEngine]:
    """The engine of `server`; free-running, and idle again at the end."""
    shared_engine.reply = default_reply
    shared_engine.seen.clear()
    shared_engine.forget()
    yield shared_engine
    shared_engine.allow()
    shared_engine.wait_until(lambda now: now.n_active == now.n_queued == 0)


@pytest.fixture
def server(shared_server: Running, engine: FakeEngine) -> Running:
    return shared_server


@pytest.fixture
def api(server: Running) -> Iterator[httpx.Client]:
    """A plain HTTP client of `server`."""
    with server.client() as client:
        yield client
