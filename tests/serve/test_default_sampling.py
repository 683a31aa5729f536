"""What a request leaves out is the model's own; answers and /v1/models tell it, and who recommends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import httpx
import pytest

from minfer.engine import DefaultSampling, SamplingSource
from minfer.sampling import SamplingParams
from minfer.serve import ServerConfig
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Once"},
}
OWN = {"temperature": 0.2, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.0}


@pytest.fixture(scope="module")
def known(smol: Tokenizer) -> FakeEngine:
    engine = FakeEngine(smol)
    recommended = MappingProxyType({"temperature": 0.2, "top_p": 0.9})
    engine.default_sampling = DefaultSampling(recommended, SamplingSource.CATALOGUE)
    return engine


@pytest.fixture(scope="module")
def client(known: FakeEngine) -> Iterator[httpx.Client]:
    with running(ServerConfig(port=0), lambda: known) as server, server.client() as client:
        yield client


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {}),
        ({"temperature": None}, {}),
        ({"top_k": 5}, {"top_k": 5}),
        ({"temperature": 1.5, "repeat_penalty": 1.25}, {"temperature": 1.5, "repeat_penalty": 1.25}),
        ({"temperature": 0}, {"temperature": 0.0, "top_p": 0.95}),  # nothing of the recommendation
    ],
)
def test_what_is_left_out_is_the_model_s_own(
    client: httpx.Client, known: FakeEngine, path: str, given: dict[str, Any], told: dict[str, Any]
) -> None:
    body = {**ASK[path], **given}
    whole = client.post(path, json=body).json()
    stream = client.post(path, json={**body, "stream": True}).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n\n")[:-2]]
    want = {**OWN, **told, "defaults_from": "catalogue"}
    assert whole["sampling"] == want
    assert [chunk["sampling"] for chunk in chunks if "sampling" in chunk] == [want]  # with the last piece
    ours = {
        "repetition_penalty" if name == "repeat_penalty" else name: value for name, value in {**OWN, **told}.items()
    }
    assert known.seen[-1].sampling == known.seen[-2].sampling == SamplingParams(**ours)


def test_the_list_of_models_tells_it(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["meta"]["default_sampling"] == {**OWN, "defaults_from": "catalogue"}


def test_where_nobody_recommends_anything(api: httpx.Client, engine: FakeEngine) -> None:
    answer = api.post(CHAT, json=ASK[CHAT]).json()
    want = {**OWN, "temperature": 0.8, "top_p": 0.95, "defaults_from": "minfer"}
    assert answer["sampling"] == want
    assert engine.seen[-1].sampling == SamplingParams()
    assert api.get("/v1/models").json()["data"][0]["meta"]["default_sampling"] == want
