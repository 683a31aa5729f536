"""An answer as it is written, and a second question that finds the first one in the cache.

python examples/streaming.py [http://127.0.0.1:8080]
"""

from __future__ import annotations

import asyncio
import sys

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
QUESTIONS = ["Name a colour.", "And another one?"]


async def ask(client: openai.AsyncOpenAI, messages: list[dict[str, str]]) -> str:
    """Prints the answer piece by piece, and returns it."""
    text = ""
    stream = await client.chat.completions.create(
        model=(await client.models.list()).data[0].id,
        messages=messages,
        max_tokens=60,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:  # leaving the loop early, or cancelling the task, stops the server's work too
        if chunk.choices and chunk.choices[0].delta.content:
            text += chunk.choices[0].delta.content
            print(chunk.choices[0].delta.content, end="", flush=True)
        if chunk.usage:
            n_cached = chunk.usage.prompt_tokens_details.cached_tokens
            print(f"\n[{chunk.usage.prompt_tokens} tokens in the prompt, {n_cached} of them from the cache]")
    return text


async def main() -> None:
    messages: list[dict[str, str]] = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="not needed") as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": await ask(client, messages)})


asyncio.run(main())
