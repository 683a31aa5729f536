"""Many prompts at once: the server computes them together, which takes far less time than one after the other.

    python examples/batch.py [http://127.0.0.1:8080] < prompts.txt

One prompt a line; the answers come out in the same order, as lines of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
AT_ONCE = 16
"""More than the server computes together, so that it never waits for us, and less than its queue holds."""


async def main() -> None:
    prompts = [line.strip() for line in sys.stdin if line.strip()]
    room = asyncio.Semaphore(AT_ONCE)
    # A queue that is full is answered with Retry-After, which the client follows by itself.
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="not needed", max_retries=10) as client:
        model = (await client.models.list()).data[0].id

        async def answer(prompt: str) -> str:
            async with room:
                messages = [{"role": "user", "content": prompt}]
                got = await client.chat.completions.create(model=model, messages=messages, max_tokens=60, temperature=0)
            return got.choices[0].message.content

        for prompt, text in zip(prompts, await asyncio.gather(*map(answer, prompts)), strict=True):
            print(json.dumps({"prompt": prompt, "answer": text}, ensure_ascii=False))


asyncio.run(main())
