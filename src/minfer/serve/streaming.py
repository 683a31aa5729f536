"""Answers that go out while the client is watched: as server-sent events, or whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minfer.serve.errors import ClientGoneError, api_error
from minfer.serve.record import Outcome, record_of
from minfer.serve.submission import Submission

T = TypeVar("T")

KEEP_ALIVE: Final = b": still here\n\n"
_END: Final = b"data: [DONE]\n\n"


async def unless_gone(watch: Awaitable[None], work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client closes the connection first.

    Args:
        watch: `disconnect`, which this ends.

    Raises:
        ClientGoneError: it did.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(watch)
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def disconnect(receive: Receive) -> None:
    """Returns when the client has closed the connection, or has its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: BaseModel | dict[str, Any]) -> bytes:
    """One server-sent event with JSON in it."""
    text = data.model_dump_json() if isinstance(data, BaseModel) else json.dumps(data)
    return f"data: {text}\n\n".encode()


class EventStream(Response):
    """A stream of server-sent events, with `[DONE]` at its end. An error on the way is told in an event of its own.

    The submission is cancelled when the stream ends, however it ends.
    """

    media_type = "text/event-stream"

    def __init__(self, submission: Submission, events: AsyncGenerator[bytes], send_timeout_s: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._submission = submission
        self._events = events
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._submission:
            watcher = asyncio.ensure_future(disconnect(receive))
            await unless_gone(watcher, self._send_all(scope, send, watcher))

    async def _send_all(self, scope: Scope, send: Send, watcher: asyncio.Future[None]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with contextlib.aclosing(self._events) as events:
                async for data in events:
                    await self._send(send, data)
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001  # the status is out already: the stream is where it can be told
            answer = api_error(error)
            record = record_of(scope)
            record.error, record.outcome = answer.code, Outcome.ERROR
            await self._send(send, event(answer.body()))
        await self._send(send, _END)
        # What is sent to a closed connection is dropped in silence: only the watcher knows. It takes a turn of the
        # event loop each until the connection counts as lost, until the watcher hears of it, and until it ends.
        for _ in range(3):
            await asyncio.sleep(0)
        if watcher.done():
            raise ClientGoneError
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._send_timeout_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise ClientGoneError from None


class Run(Protocol):
    """A request at work; one of the two is used, once."""

    async def collect(self) -> BaseModel:
        """The whole answer."""
        ...

    def stream(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        ...


async def respond(run: Run, submission: Submission, receive: Receive, *, streams: bool, timeout_s: float) -> Response:
    """The answer to a client that is there to read it, as it comes or whole.

    Raises:
        ClientGoneError: the client closed the connection before its whole answer was ready.
    """
    if streams:
        return EventStream(submission, run.stream(), timeout_s)
    with submission:
        answer = await unless_gone(disconnect(receive), run.collect())
    return Response(answer.model_dump_json(), media_type="application/json")
