"""One chat request at work: from the engine's events to the answers, whole or piece by piece."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from minfer.engine import StopCause
from minfer.sampling import SamplingParams
from minfer.serve.accounting import Account
from minfer.serve.answer_parser import AnswerParser, Update
from minfer.serve.chat_prompt import ChatPrompt
from minfer.serve.engine_protocol import (
    Engine,
    EngineClosedError,
    Event,
    PromptProgress,
    SampleDelta,
    SampleDone,
    Started,
    TokenLogprobs,
)
from minfer.serve.progress import ProgressReporter
from minfer.serve.schema_chat import (
    AnswerDelta,
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatRequest,
    ChatResponse,
    ChoiceLogprobs,
    FinishReasonName,
    MadeCall,
    MadeCallDelta,
)
from minfer.serve.schema_common import sampling_report
from minfer.serve.state import FINGERPRINT
from minfer.serve.streaming import KEEP_ALIVE, event
from minfer.serve.submission import Submission
from minfer.serve.token_text import content_logprob


@dataclass
class _Choice:
    """One of the answers so far."""

    parser: AnswerParser
    has_begun: bool = False
    reasoning: str = ""
    content: str = ""
    calls: list[MadeCall] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReasonName | None = None


class ChatRun:
    """The answers to one chat request. Either `collect` or `stream` is used, once."""

    def __init__(
        self, engine: Engine, body: ChatRequest, prompt: ChatPrompt, submission: Submission, sampling: SamplingParams
    ) -> None:
        self._tokenizer = engine.tokenizer
        self._body = body
        self._submission = submission
        self._account = Account()
        self._sampling = sampling_report(sampling, engine.default_sampling)
        self._progress = ProgressReporter(submission.submitted_s)
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": engine.model_name,
            "system_fingerprint": FINGERPRINT,
        }
        splits, one_call = body.reasoning_format != "none", body.parallel_tool_calls is False
        self._choices = [
            _Choice(AnswerParser(prompt, splits_reasoning=splits, one_call=one_call)) for _ in range(body.n or 1)
        ]

    async def collect(self) -> ChatResponse:
        """The answers, once all of them are over."""
        if self._body.tools:
            async for item in self._submission:  # a call may end an answer early
                self._take(item)
        else:
            for item in await self._submission.all_events():
                self._take(item)
        return ChatResponse(
            **self._head,
            choices=[self._whole(index, choice) for index, choice in enumerate(self._choices)],
            usage=self._account.usage(),
            timings=self._account.timings(),
            sampling=self._sampling,
        )

    def _take(self, item: tuple[int, Event] | None) -> None:
        match item:
            case _, SampleDelta() as delta if not self._choices[delta.sample].parser.is_over:
                self._push(delta)
            case _, SampleDone() as done:
                self._finish(done)

    async def stream(self) -> AsyncGenerator[bytes]:
        """The answers as server-sent events, as they come."""
        async for item in self._submission:
            match item:
                case None:
                    yield KEEP_ALIVE
                case _, (Started() | PromptProgress()) as news:
                    report = self._progress.note(news)
                    if self._body.return_progress and report is not None:
                        empty = ChatChunkChoice(index=0, delta=AnswerDelta())
                        yield event(ChatChunk(**self._head, choices=[empty], prompt_progress=report))
                case _, SampleDelta() as delta if not self._choices[delta.sample].parser.is_over:
                    update = self._push(delta)
                    if update or delta.logprobs:
                        yield self._chunk(delta.sample, update, delta.logprobs)
                case _, SampleDone() as done:
                    update = self._finish(done)
                    if update:
                        yield self._chunk(done.sample, update)
                    yield self._last_chunk(done.sample)
        if self._body.includes_usage:
            yield event(ChatChunk(**self._head, choices=[], usage=self._account.usage()))

    def _push(self, delta: SampleDelta) -> Update:
        choice = self._choices[delta.sample]
        update = choice.parser.push(delta.text)
        choice.logprobs += delta.logprobs
        self._add(choice, update)
        if all(other.parser.is_over or other.finish_reason for other in self._choices):
            self._submission.cancel()
        return update

    def _finish(self, done: SampleDone) -> Update:
        choice = self._choices[done.sample]
        if done.cause is StopCause.CANCELLED and not choice.parser.is_over:
            raise EngineClosedError("the request was cancelled")
        update = choice.parser.finish(done.cause)
        self._add(choice, update)
        choice.finish_reason = choice.parser.finish_reason(done.cause)
        self._account.add(0, done.stats)
        return update

    def _add(self, choice: _Choice, update: Update) -> None:
        choice.reasoning += update.reasoning
        choice.content += update.content
        choice.calls += update.calls

    def _whole(self, index: int, choice: _Choice) -> ChatChoice:
        assert choice.finish_reason is not None
        message = AnswerMessage(
            content=choice.content if choice.content or not choice.calls else None,
            reasoning_content=choice.reasoning or None,
            tool_calls=choice.calls or None,
        )
        logprobs = self._logprobs(choice.logprobs) if self._body.logprobs else None
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=choice.finish_reason)

    def _chunk(self, index: int, update: Update, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        choice = self._choices[index]
        n_before = len(choice.calls) - len(update.calls)
        delta = AnswerDelta(
            role=None if choice.has_begun else "assistant",
            content=update.content or None,
            reasoning_content=update.reasoning or None,
            tool_calls=[MadeCallDelta(index=n_before + i, **dict(call)) for i, call in enumerate(update.calls)] or None,
        )
        choice.has_begun = True
        told = self._logprobs(logprobs) if logprobs else None
        return event(ChatChunk(**self._head, choices=[ChatChunkChoice(index=index, delta=delta, logprobs=told)]))

    def _last_chunk(self, index: int) -> bytes:
        choice = self._choices[index]
        delta = AnswerDelta() if choice.has_begun else AnswerDelta(role="assistant", content="")
        last = ChatChunkChoice(index=index, delta=delta, finish_reason=choice.finish_reason)
        is_over = all(other.finish_reason is not None for other in self._choices)
        timings = self._account.timings() if is_over else None
        sampling = self._sampling if is_over else None
        return event(ChatChunk(**self._head, choices=[last], timings=timings, sampling=sampling))

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> ChoiceLogprobs:
        return ChoiceLogprobs(content=[content_logprob(self._tokenizer, entry) for entry in entries])
