"""One request in the batch engine: from the queue over its prompt to its samples."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minfer.engine.answer import Answer
from minfer.engine.batch_types import (
    BatchRequest,
    EventListener,
    Failed,
    PromptLogprobs,
    PromptProgress,
    SampleDelta,
    SampleDone,
    SampleStats,
    Started,
)
from minfer.engine.results import StopCause
from minfer.engine.runtime import Runtime
from minfer.engine.session import Extension, Session
from minfer.sampling import VocabularyOps, token_logprobs


class BatchJob:
    """The state of a request. Only the engine's thread touches it, but for `cancelled`, which anyone may set."""

    def __init__(self, request: BatchRequest, answers: Sequence[Answer], on_event: EventListener, n_pages: int) -> None:
        """
        Args:
            answers: one for each sample; none where the prompt is only scored.
            n_pages: what its samples can come to need, if they share nothing.
        """
        self.request = request
        self.n_pages = n_pages
        self.cancelled = False
        self.n_cached_tokens = 0
        self._answers = answers
        self._tell = on_event
        self._prompt: Session | None = None
        """while the prompt is computed"""
        self._samples: dict[int, Session] = {}
        """the samples that go on"""
        self._submitted_s = time.perf_counter()
        self._started_s: float | None = None
        self._first_token_s: float | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the job was submitted."""
        return time.perf_counter() - self._submitted_s

    @property
    def is_prefilling(self) -> bool:
        return self._prompt is not None

    @property
    def is_over(self) -> bool:
        return self._started_s is not None and self._prompt is None and not self._samples

    @property
    def n_decoding(self) -> int:
        """Samples that go on."""
        return len(self._samples)

    @property
    def n_prompt_left(self) -> int:
        """Tokens of the prompt that are to be computed."""
        return len(self.request.prompt_tokens) - self._prompt.n_tokens if self._prompt is not None else 0

    @property
    def scores_prompt(self) -> bool:
        """Whether every row of the prompt is wanted."""
        return self.request.prompt_logprobs is not None

    def start(self, runtime: Runtime) -> None:
        """Leaves the queue."""
        reuse = self.request.prompt_tokens if self.request.reuse_prefix and not self.scores_prompt else ()
        self._started_s = time.perf_counter()
        self._prompt = Session(runtime, reuse=reuse)
        self.n_cached_tokens = self._prompt.n_tokens
        self._tell(Started(self.n_cached_tokens))

    def prompt_part(self, n_tokens: int) -> Extension:
        """The next tokens of the prompt, for a step."""
        assert self._prompt is not None
        start = self._prompt.n_tokens
        part = self.request.prompt_tokens[start : start + n_tokens]
        return Extension(self._prompt, part, wants_logits=start + len(part) == len(self.request.prompt_tokens))

    def prompt_advanced(self, logits: NDArray[np.float32] | None) -> int:
        """A part of the prompt has been computed; with its last part come logits. How many samples' first tokens were
        drawn."""
        assert self._prompt is not None
        self._tell(PromptProgress(self._prompt.n_tokens, len(self.request.prompt_tokens)))
        return 0 if logits is None else self._begin_samples(logits)

    def score(self, n_tokens: int, ops: VocabularyOps) -> int:
        """Computes the next tokens of a prompt all of whose logprobs are wanted: a step by itself, since it has as many
        rows of logits as tokens. How many samples' first tokens were drawn."""
        assert self._prompt is not None
        assert self.request.prompt_logprobs is not None
        prompt, start = self.request.prompt_tokens, self._prompt.n_tokens
        rows = self._prompt.extend_all(prompt[start : start + n_tokens])
        following = prompt[start + 1 : start + n_tokens + 1]
        pairs = zip(rows, following, strict=False)  # nothing follows the last token
        entries = tuple(token_logprobs(row, token, self.request.prompt_logprobs, ops) for row, token in pairs)
        self._tell(PromptProgress(self._prompt.n_tokens, len(prompt)))
        if entries:
            self._tell(PromptLogprobs(entries))
        return self._begin_samples(rows[-1]) if self.n_prompt_left == 0 else 0

    def decode_parts(self) -> list[tuple[int, Extension]]:
        """The next token of each sample, for a step."""
        return [
            (index, Extension(session, [self._answers[index].next_token])) for index, session in self._samples.items()
        ]

    def push(self, index: int, logits: NDArray[np.float32]) -> None:
        """Takes the logits after a sample's last token; nothing happens if the job has ended meanwhile."""
        if index not in self._samples:
            return
        answer = self._answers[index]
        delta = answer.push(logits)
        if not answer.is_done and self._samples[index].is_full:
            if delta:
                self._tell(SampleDelta(index, delta.text, delta.tokens, delta.logprobs))
            delta = answer.end(StopCause.CONTEXT_END)
        if answer.is_done:
            self._samples.pop(index).close()
        if delta:
            self._tell(SampleDelta(index, delta.text, delta.tokens, delta.logprobs))
        if answer.cause is not None:
            self._tell(SampleDone(index, answer.cause, self._stats(answer)))

    def cancel(self) -> None:
        """Ends what is not over yet."""
        going = list(self._samples) if self._samples else list(range(self.request.n_samples))
        if self.is_over:
            going = []
        self._close_sessions()
        for index in going:
            answer = self._answers[index] if self._answers else None
            if answer is not None:
                answer.end(StopCause.CANCELLED)
            self._tell(SampleDone(index, StopCause.CANCELLED, self._stats(answer)))

    def fail(self, error: Exception) -> None:
        """Ends with an error."""
        self._close_sessions()
        self._tell(Failed(error))

    def _begin_samples(self, logits: NDArray[np.float32]) -> int:
        """The prompt is computed: each sample draws its first token."""
        prompt = self._prompt
        assert prompt is not None
        self._first_token_s = time.perf_counter()
        if not self._answers:
            self._prompt = None
            prompt.close()
            for index in range(self.request.n_samples):
                self._tell(SampleDone(index, StopCause.MAX_TOKENS, self._stats(None)))
            return 0
        self._samples = {index: prompt.fork() for index in range(1, self.request.n_samples)}
        self._samples = {0: prompt, **self._samples}
        self._prompt = None
        for index in list(self._samples):
            self.push(index, logits)
        return self.request.n_samples

    def _close_sessions(self) -> None:
        sessions = [*self._samples.values(), *([] if self._prompt is None else [self._prompt])]
        self._samples, self._prompt = {}, None
        self._started_s = self._started_s or time.perf_counter()
        for session in sessions:
            session.close()

    def _stats(self, answer: Answer | None) -> SampleStats:
        now = time.perf_counter()
        started = now if self._started_s is None else self._started_s
        first = now if self._first_token_s is None else self._first_token_s
        return SampleStats(
            n_prompt_tokens=len(self.request.prompt_tokens),
            n_cached_tokens=self.n_cached_tokens,
            n_generated_tokens=0 if answer is None else answer.n_tokens,
            queue_s=started - self._submitted_s,
            prefill_s=first - started,
            decode_s=now - first,
            seed=self.request.sampling.seed or 0 if answer is None else answer.sampler.seed,
        )
