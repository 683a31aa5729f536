"""One completions request at work: from the engine's events to the answers, whole or piece by piece."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from minfer.engine import StopCause
from minfer.sampling import SamplingParams
from minfer.serve.accounting import Account
from minfer.serve.completion_logprobs import LogprobsWriter, joined
from minfer.serve.completion_prompt import CompletionPrompt
from minfer.serve.engine_protocol import (
    Engine,
    EngineClosedError,
    PromptLogprobs,
    PromptProgress,
    SampleDelta,
    SampleDone,
    Started,
    TokenLogprobs,
)
from minfer.serve.progress import ProgressReporter
from minfer.serve.schema_common import sampling_report
from minfer.serve.schema_completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from minfer.serve.state import FINGERPRINT
from minfer.serve.streaming import KEEP_ALIVE, event
from minfer.serve.submission import Submission


@dataclass
class _Choice:
    """One of the answers so far."""

    writer: LogprobsWriter
    has_begun: bool = False
    text: str = ""
    logprobs: list[CompletionLogprobs] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None


class CompletionRun:
    """The answers to one completions request. Either `collect` or `stream` is used, once."""

    def __init__(
        self,
        engine: Engine,
        body: CompletionRequest,
        prompts: Sequence[CompletionPrompt],
        submission: Submission,
        sampling: SamplingParams,
    ) -> None:
        self._body = body
        self._prompts = prompts
        self._submission = submission
        self._account = Account()
        self._sampling = sampling_report(sampling, engine.default_sampling)
        self._progress = [ProgressReporter(submission.submitted_s) for _ in prompts]
        self._prompt_logprobs: list[list[TokenLogprobs]] = [[] for _ in prompts]
        self._n = body.n or 1
        self._choices = [_Choice(LogprobsWriter(engine.tokenizer)) for _ in range(len(prompts) * self._n)]
        self._head: dict[str, Any] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": engine.model_name,
            "system_fingerprint": FINGERPRINT,
        }

    async def collect(self) -> CompletionResponse:
        """The answers, once all of them are over."""
        for item in await self._submission.all_events():
            match item:
                case prompt, PromptLogprobs() as news:
                    self._prompt_logprobs[prompt] += news.entries
                case prompt, SampleDelta() as delta:
                    self._add(prompt, delta)
                case prompt, SampleDone() as done:
                    self._finish(prompt, done)
        choices = [
            CompletionChoice(
                index=index,
                text=choice.text,
                logprobs=None if self._body.logprobs is None else joined(choice.logprobs),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(self._choices)
        ]
        return CompletionResponse(
            **self._head,
            choices=choices,
            usage=self._account.usage(),
            timings=self._account.timings(),
            sampling=self._sampling,
        )

    async def stream(self) -> AsyncGenerator[bytes]:
        """The answers as server-sent events, as they come."""
        async for item in self._submission:
            match item:
                case None:
                    yield KEEP_ALIVE
                case prompt, (Started() | PromptProgress()) as news:
                    report = self._progress[prompt].note(news)
                    if self._body.return_progress and report is not None:
                        empty = CompletionChoice(index=prompt * self._n, text="", finish_reason=None)
                        yield event(CompletionResponse(**self._head, choices=[empty], prompt_progress=report))
                case prompt, PromptLogprobs() as entries:
                    self._prompt_logprobs[prompt] += entries.entries
                case prompt, SampleDelta() as delta:
                    yield event(CompletionResponse(**self._head, choices=[self._add(prompt, delta)]))
                case prompt, SampleDone() as done:
                    last = self._finish(prompt, done)
                    is_over = all(choice.finish_reason is not None for choice in self._choices)
                    timings = self._account.timings() if is_over else None
                    sampling = self._sampling if is_over else None
                    yield event(CompletionResponse(**self._head, choices=[last], timings=timings, sampling=sampling))
        if self._body.includes_usage:
            yield event(CompletionResponse(**self._head, choices=[], usage=self._account.usage()))

    def _add(self, prompt: int, delta: SampleDelta) -> CompletionChoice:
        index = prompt * self._n + delta.sample
        choice = self._choices[index]
        text, parts = self._begin(prompt, choice)
        text += delta.text
        if self._body.logprobs is not None:
            parts.append(choice.writer.answer(delta.logprobs))
        return self._piece(index, text, parts)

    def _finish(self, prompt: int, done: SampleDone) -> CompletionChoice:
        if done.cause is StopCause.CANCELLED:
            raise EngineClosedError("the request was cancelled")
        index = prompt * self._n + done.sample
        choice = self._choices[index]
        choice.finish_reason = "stop" if done.cause.finish_reason == "stop" else "length"
        self._account.add(prompt, done.stats)
        return self._piece(index, *self._begin(prompt, choice))

    def _begin(self, prompt: int, choice: _Choice) -> tuple[str, list[CompletionLogprobs]]:
        """What stands before the answer: the prompt, where it is echoed."""
        is_first, choice.has_begun = not choice.has_begun, True
        if not is_first or not self._body.echo:
            return "", []
        if self._body.logprobs is None:
            return self._prompts[prompt].text, []
        return self._prompts[prompt].text, [choice.writer.prompt(self._prompts[prompt], self._prompt_logprobs[prompt])]

    def _piece(self, index: int, text: str, parts: list[CompletionLogprobs]) -> CompletionChoice:
        choice = self._choices[index]
        choice.text += text
        choice.logprobs += parts
        logprobs = joined(parts) if parts else None
        return CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=choice.finish_reason)
