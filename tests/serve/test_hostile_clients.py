"""Clients that vanish, stall, or speak nonsense: the server stays well, and all pages come back."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from minfer.serve import Limits, ServerConfig
from minfer.text import Tokenizer
from serve_fake_engine import FakeEngine
from serve_running import TIMEOUT_S, Running, metric, running

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "ignore_eos": True}
LONG = {"messages": [{"role": "user", "content": "word " * 1000}]}
N_CLIENTS = 200


@pytest.fixture(scope="module")
def big(qwen: Tokenizer) -> FakeEngine:
    """An engine that takes all clients of these tests at once."""
    return FakeEngine(qwen, max_active=N_CLIENTS, max_queued=N_CLIENTS)


@pytest.fixture(scope="module")
def impatient(big: FakeEngine) -> Iterator[Running]:
    """A server that waits for nobody."""
    limits = Limits(head_timeout_s=0.2, idle_timeout_s=1.0, body_timeout_s=0.2, send_timeout_s=0.5, keep_alive_s=5.0)
    with running(ServerConfig(port=0, limits=limits), lambda: big) as server:
        yield server


@pytest.fixture
def api(impatient: Running) -> Iterator[httpx.Client]:
    """A client that behaves."""
    with impatient.client() as client:
        yield client


@pytest.fixture(autouse=True)
def stays_well(api: httpx.Client, big: FakeEngine) -> Iterator[None]:
    """After each test, everything is as before: free pages, no requests, and a new one is answered."""
    big.forget()
    big.hold()
    yield
    big.wait_until(lambda now: now.n_active == now.n_queued == 0)
    big.allow()
    assert api.get("/health").json() == {"status": "ok"}
    text = api.get("/metrics").text
    assert metric(text, "minfer_kv_pages", state="used") == 0
    assert metric(text, "minfer_active_requests") == metric(text, "minfer_queue_depth") == 0
    assert api.post(CHAT, json={**HELLO, "max_tokens": 2}).status_code == 200


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)


def post(body: dict[str, Any], path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def receive_until(client: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = client.recv(65536)
        assert piece, data
        data += piece
    return data


def receive_all(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


def vanish(client: socket.socket, *, with_reset: bool) -> None:
    """Closes a connection, politely or not."""
    if with_reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def cancelled(api: httpx.Client) -> float:
    """How many chat requests the metrics know whose client went away."""
    try:
        return metric(api.get("/metrics").text, "minfer_requests_total", endpoint=CHAT, outcome="cancelled")
    except AssertionError:
        return 0


def wait_for_cancelled(api: httpx.Client, n: float) -> None:
    """Waits until the server has noticed that clients are gone."""
    for _ in range(1000):
        if cancelled(api) >= n:
            break
        threading.Event().wait(0.01)
    assert cancelled(api) == n, api.get("/metrics").text


def test_two_hundred_clients_vanish_mid_stream(api: httpx.Client, impatient: Running, big: FakeEngine) -> None:
    before = cancelled(api)
    clients = [connect(impatient) for _ in range(N_CLIENTS)]
    for client in clients:
        client.sendall(post({**HELLO, "stream": True}))
    big.wait_until(lambda now: now.n_queued == N_CLIENTS)
    big.allow(3)
    for client in clients:
        receive_until(client, b'"content":"Sample')
    assert big.snapshot().n_active == N_CLIENTS
    for index, client in enumerate(clients):
        vanish(client, with_reset=index % 2 == 0)
    now = big.wait_until(lambda now: now.n_active == 0)
    assert now.n_free_pages == now.n_pages
    wait_for_cancelled(api, before + N_CLIENTS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n_steps", [0, 1, 20])
def test_a_client_vanishes_in_the_queue_in_prefill_or_in_decode(
    impatient: Running, big: FakeEngine, n_steps: int, stream: bool
) -> None:
    client = connect(impatient)
    client.sendall(post({**LONG, "stream": stream, "ignore_eos": True, "n": 2}))
    big.wait_until(lambda now: now.n_queued == 1)
    big.allow(n_steps)
    n_prompt = len(big.seen[-1].prompt_tokens)
    n_read = min(64 * n_steps, n_prompt)
    now = big.wait_until(lambda now: n_steps == 0 or (now.n_active == 1 and now.n_free_pages < now.n_pages))
    assert n_steps == 0 or n_read > 0
    vanish(client, with_reset=False)
    now = big.wait_until(lambda now: now.n_queued == now.n_active == 0)
    assert now.n_free_pages == now.n_pages


def test_prompts_of_a_list_are_all_cancelled(impatient: Running, big: FakeEngine) -> None:
    client = connect(impatient)
    client.sendall(post({"prompt": ["a", "b", "c"], "n": 3, "max_tokens": 100}, "/v1/completions"))
    big.wait_until(lambda now: now.n_queued == 3)
    big.allow(2)
    big.wait_until(lambda now: now.n_active == 3)
    vanish(client, with_reset=True)
    now = big.wait_until(lambda now: now.n_active == 0)
    assert (now.n_queued, now.n_free_pages) == (0, now.n_pages)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/compl", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
def test_half_a_head(impatient: Running, sent: bytes) -> None:
    with connect(impatient) as client:
        client.sendall(sent)
        assert client.recv(1) == b""  # it is closed after the time-out


def test_half_a_head_after_a_whole_request(impatient: Running) -> None:
    with connect(impatient) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
        assert b'{"status":"ok"}' in receive_all(client)


@pytest.mark.parametrize("n_declared", [100_000, 10**15])
def test_half_a_body(impatient: Running, n_declared: int) -> None:
    with connect(impatient) as client:
        client.sendall(post(HELLO).replace(b"Content-Length: ", b"Content-Length: %d\r\nX: " % n_declared))
        answer = receive_all(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer


def test_a_client_vanishes_in_its_body(api: httpx.Client, impatient: Running, big: FakeEngine) -> None:
    before = cancelled(api)
    client = connect(impatient)
    client.sendall(post(LONG)[:500])
    assert api.get("/health").status_code == 200
    vanish(client, with_reset=False)
    with connect(impatient) as other:  # the connection is seen before the next one is answered
        other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        receive_all(other)
    wait_for_cancelled(api, before + 1)
    assert big.snapshot().n_queued == 0


def test_a_client_that_does_not_read(api: httpx.Client, impatient: Running, big: FakeEngine) -> None:
    """What is sent fills the buffers, and then the server gives up."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(TIMEOUT_S)
    client.connect(("127.0.0.1", impatient.port))
    before = cancelled(api)
    client.sendall(post({**HELLO, "stream": True, "logprobs": True, "top_logprobs": 20, "max_tokens": 4000, "n": 2}))
    big.wait_until(lambda now: now.n_queued == 1)
    big.allow()
    now = big.wait_until(lambda now: now.n_active == now.n_queued == 0)
    assert now.n_free_pages + now.n_cached_pages == now.n_pages
    wait_for_cancelled(api, before + 1)  # the engine may be done long before the server gives up
    client.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http(impatient: Running, sent: bytes) -> None:
    with connect(impatient) as client:
        client.sendall(sent)
        assert receive_all(client).startswith(b"HTTP/1.1 400 ")


def test_a_head_without_end(impatient: Running) -> None:
    with connect(impatient) as client, contextlib.suppress(ConnectionResetError):  # it may be cut before it is read
        client.sendall(b"GET /" + b"a" * 200_000)
        assert receive_all(client).startswith(b"HTTP/1.1 400 ")


def test_a_websocket_is_refused(impatient: Running) -> None:
    with connect(impatient) as client:
        client.sendall(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n"
            b"Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert b"101" not in receive_until(client, b"\r\n")
