"""A question to a running `minfer serve`, with the official client.

pip install openai
python examples/openai_client.py "Why is the sky blue?" [http://127.0.0.1:8080]
"""

from __future__ import annotations

import sys

import openai

question = sys.argv[1] if len(sys.argv) > 1 else "Why is the sky blue?"
url = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8080"

with openai.OpenAI(base_url=f"{url}/v1", api_key="not needed") as client:
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=100,
        temperature=0.7,
        extra_body={"min_p": 0.05, "repeat_penalty": 1.1},  # what only local servers have
    )
print(answer.choices[0].message.content)
print(f"[{model}: {answer.usage.prompt_tokens} tokens read, {answer.usage.completion_tokens} written]", file=sys.stderr)
