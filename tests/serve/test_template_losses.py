"""What a client said reaches the prompt, or the request is refused."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from minfer.serve import ServerConfig
from minfer.text import build_tokenizer
from serve_fake_engine import FakeEngine
from serve_running import running
from text_vocabularies import real_metadata

PARTS = (
    "{% for m in messages if m.role != 'tool' %}{{ m.role }}: "
    "{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"
)


@pytest.fixture(scope="module")
def parts_engine() -> FakeEngine:
    return FakeEngine(build_tokenizer(real_metadata("smollm2-135m"), PARTS))


@pytest.fixture(scope="module")
def client(parts_engine: FakeEngine) -> Iterator[httpx.Client]:
    with running(ServerConfig(port=0), lambda: parts_engine) as server, server.client() as http:
        yield http


def test_a_template_that_reads_parts_gets_them(client: httpx.Client, parts_engine: FakeEngine) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    answer = client.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 200
    (request,) = parts_engine.seen
    assert parts_engine.tokenizer.detokenize(request.prompt_tokens) == "system: Be brief.;user: Hello!;"


def test_a_message_that_the_template_leaves_out_is_refused(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hello!"}, {"role": "tool", "content": "42", "tool_call_id": "a"}]
    answer = client.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    assert "leaves out the text of messages[1], whose role is 'tool'" in answer.json()["error"]["message"]
