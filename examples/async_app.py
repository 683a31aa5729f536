"""The engine inside an asynchronous program: no server, and the event loop never waits for the model.

python examples/async_app.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import minfer
from minfer.engine import BatchEngine, BatchRequest, Failed, SampleDelta, SampleDone
from minfer.sampling import SamplingParams

QUESTIONS = ["Name a colour.", "Name an animal.", "Name a city."]


async def stream(engine: BatchEngine, question: str) -> AsyncIterator[str]:
    """The answer to a question, piece by piece. Leaving it early cancels the rest."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue = asyncio.Queue()
    request = BatchRequest(
        prompt_tokens=tuple(engine.tokenizer.encode_chat([{"role": "user", "content": question}])),
        sampling=SamplingParams(temperature=0),
        max_tokens=30,
        continues_text=False,
    )
    # Events come from the engine's thread, and are handed over to this one's loop.
    handle = engine.submit(request, lambda event: loop.call_soon_threadsafe(events.put_nowait, event))
    try:
        while True:
            match await events.get():
                case SampleDelta(text=text) if text:
                    yield text
                case SampleDone():
                    return
                case Failed(error=error):
                    raise error
    finally:
        handle.cancel()


async def ask(engine: BatchEngine, question: str) -> None:
    answer = "".join([piece async for piece in stream(engine, question)])
    print(f"{question} {answer.strip()}")


async def main(model: minfer.Model) -> None:
    engine = model.batch_engine(max_active=len(QUESTIONS))
    try:
        await asyncio.gather(*(ask(engine, question) for question in QUESTIONS))  # computed together
    finally:
        engine.close()


with minfer.load(sys.argv[1] if len(sys.argv) > 1 else "default") as model:
    asyncio.run(main(model))
