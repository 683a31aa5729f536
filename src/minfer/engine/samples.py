"""Several answers to one prompt: they share its pages, and take their steps together."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from minfer.engine.answer import Delta, GenerationRequest
from minfer.engine.results import Generation, StopCause
from minfer.engine.samplers import Samplers
from minfer.engine.session import Extension, ProgressCallback, Session, extend_together
from minfer.engine.unpicklable import Unpicklable
from minfer.errors import ParameterError
from minfer.sampling import SamplingParams

_N_SEEDS = 2**64


class SampleStream(Unpicklable, Iterator[tuple[int, Delta]]):
    """Answers as they are generated: iterate over pairs of the index of an answer and a new piece of it.

    Dropping the stream, or `close()`, ends the generation; what is not done then counts as cancelled.
    """

    def __init__(
        self,
        samplers: Samplers,
        request: GenerationRequest,
        n: int,
        open_session: Callable[[], Session],
        progress: ProgressCallback | None = None,
    ) -> None:
        """
        Args:
            request: what each answer is to be; answer i takes the seed `seed + i`.
            n: how many answers.
            open_session: called when the first piece is asked for. The session holds a beginning of the prompt's
                tokens, and not all of them.

        Raises:
            ParameterError: `n` is not an integer of at least 1; or as `Samplers.answer`.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ParameterError(f"n must be an integer of at least 1, not {n!r}")
        seed = request.sampling.seed
        first = secrets.randbits(64) if seed is None else seed
        seeds = [(first + i) % _N_SEEDS for i in range(n)]
        self._answers = [
            samplers.answer(replace(request, sampling=replace(request.sampling, seed=seed))) for seed in seeds
        ]
        self._open_session = open_session
        self._progress = progress
        self._generator = self._run()

    def __next__(self) -> tuple[int, Delta]:
        return next(self._generator)

    def close(self) -> None:
        """Ends the generation and frees its pages."""
        self._generator.close()
        self._end_all()

    @property
    def results(self) -> list[Generation]:
        """The answers so far; the whole ones once the stream has ended."""
        return [answer.result for answer in self._answers]

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the samplers' stages that are on, in order."""
        return self._answers[0].sampler.stages

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are chosen: what was asked for, and the model's own values in place of what was not; with the
        first answer's seed."""
        return self._answers[0].request.sampling

    def _run(self) -> Generator[tuple[int, Delta], None, None]:
        sessions: dict[int, Session] = {}
        try:
            first = self._open_session()
            sessions[0] = first
            logits = [self._prefill(first)] * len(self._answers)
            for index in range(1, len(self._answers)):
                sessions[index] = first.fork()
            while sessions:
                for index, row in zip(list(sessions), logits, strict=True):
                    delta = self._answers[index].push(row)
                    if delta:
                        yield index, delta
                    yield from self._close_if_over(index, sessions)
                logits = self._step(sessions)
        finally:
            self._end_all()
            for session in sessions.values():
                session.close()

    def _close_if_over(self, index: int, sessions: dict[int, Session]) -> Iterator[tuple[int, Delta]]:
        answer = self._answers[index]
        if not answer.is_done and sessions[index].is_full:
            delta = answer.end(StopCause.CONTEXT_END)
            if delta:
                yield index, delta
        if answer.is_done:
            sessions.pop(index).close()

    def _prefill(self, session: Session) -> NDArray[np.float32]:
        prompt = self._answers[0].request.prompt_tokens
        n_cached = session.n_tokens
        start_s = time.perf_counter()
        logits = session.extend(prompt[n_cached:], progress=self._progress)
        first, *others = (answer.work for answer in self._answers)
        first.prefill_s = time.perf_counter() - start_s
        first.n_cached_tokens, first.n_prefill_tokens = n_cached, len(prompt) - n_cached
        for work in others:
            work.n_cached_tokens = len(prompt)
        return logits

    def _step(self, sessions: Mapping[int, Session]) -> list[NDArray[np.float32]]:
        start_s = time.perf_counter()
        extensions = [Extension(session, [self._answers[i].next_token]) for i, session in sessions.items()]
        logits = [row for row in extend_together(extensions) if row is not None]
        for index in sessions:
            work = self._answers[index].work
            work.decode_s += time.perf_counter() - start_s
            work.n_decode_tokens += 1
        return logits

    def _end_all(self) -> None:
        for answer in self._answers:
            answer.end(StopCause.CANCELLED)
