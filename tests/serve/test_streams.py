"""Streams of events by themselves, without a server: fairness, and how a client that leaves is noticed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from minfer.sampling import SamplingParams
from minfer.serve.engine_protocol import EventListener, ServeRequest, Started
from minfer.serve.errors import ClientGoneError
from minfer.serve.record import RequestRecord, start_record
from minfer.serve.streaming import EventStream
from minfer.serve.submission import Submission

REQUEST = ServeRequest(prompt_tokens=(1,), sampling=SamplingParams(), max_tokens=1)


class Handle:
    def cancel(self) -> None:
        pass


class Piling:
    """An engine that has said everything before anybody listens."""

    def __init__(self, n_events: int) -> None:
        self._n_events = n_events

    def submit(self, request: ServeRequest, on_event: EventListener) -> Handle:
        for _ in range(self._n_events):
            on_event(Started(0))
        return Handle()


def submission(n_events: int) -> Submission:
    return Submission(Piling(n_events), [REQUEST], RequestRecord(), patience_s=10.0)  # type: ignore[arg-type]


def test_a_backlog_of_events_keeps_no_other_waiting() -> None:
    async def run() -> list[str]:
        turns = []

        async def listen() -> None:
            n_left = 5
            async for _ in submission(n_left):
                turns.append("event")
                n_left -= 1
                if n_left == 0:
                    return

        async def other() -> None:
            while turns.count("event") < 5:
                turns.append("other")
                await asyncio.sleep(0)

        await asyncio.gather(listen(), other())
        return turns

    turns = asyncio.run(run())
    events = [index for index, turn in enumerate(turns) if turn == "event"]
    assert all("other" in turns[a:b] for a, b in itertools.pairwise(events))


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_before_the_end_is_noticed(leaves: bool) -> None:
    """The connection breaks as the last event is sent: the transport tells it in the next turn of the loop, as
    asyncio's do, and then whoever waits to receive is woken."""
    sent: list[Any] = []

    async def run() -> None:
        lost = asyncio.Event()

        async def send(message: Message) -> None:
            sent.append(message)
            if leaves and b"[DONE]" in message.get("body", b""):
                asyncio.get_running_loop().call_soon(lost.set)

        async def receive() -> Message:
            await lost.wait()
            return {"type": "http.disconnect"}

        async def events() -> AsyncGenerator[bytes]:
            yield b"data: {}\n\n"

        scope: dict[str, Any] = {"type": "http"}
        start_record(scope)
        await EventStream(submission(0), events(), 5.0)(scope, receive, send)

    if leaves:
        with pytest.raises(ClientGoneError):
            asyncio.run(run())
    else:
        asyncio.run(run())
    assert (sent[-1].get("more_body") is False) is not leaves
