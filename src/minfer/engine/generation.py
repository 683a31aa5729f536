"""The decode loop of one answer: prefill, sample, stop or go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from minfer.engine.answer import Answer, Delta
from minfer.engine.results import Generation, StopCause
from minfer.engine.session import ProgressCallback, Session
from minfer.engine.unpicklable import Unpicklable
from minfer.sampling import SamplingParams


class TextStream(Unpicklable, Iterator[str]):
    """An answer as it is generated: iterate over its pieces. Their concatenation is `result.text`.

    Pieces are never empty and hold whole characters. The context length and all parameters are checked before the
    first piece. Dropping the stream, or `close()`, ends the generation; it then counts as cancelled.
    """

    def __init__(
        self,
        answer: Answer,
        open_session: Callable[[], Session],
        *,
        on_end: Callable[[Session | None], None],
        make_room: Callable[[Session], int] | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """
        Args:
            answer: a new one.
            open_session: called when the first piece is asked for. The session holds a beginning of the prompt's
                tokens, and not all of them.
            on_end: called once when the answer has ended, however it did, with the session, if it has been opened.
            make_room: drops tokens from a full session and says how many; 0 ends the answer.
            progress: called with (tokens read, tokens in all) while the prompt is read.
        """
        self._answer = answer
        self._open_session = open_session
        self._on_end = on_end
        self._make_room = make_room
        self._progress = progress
        self._session: Session | None = None
        self._has_ended = False
        self._generator = self._run()

    def __next__(self) -> str:
        while not (text := next(self._generator).text):
            pass
        return text

    def deltas(self) -> Iterator[Delta]:
        """The rest of the answer as pieces of text with the tokens that they come from; none is without both."""
        return self._generator

    def close(self) -> None:
        """Ends the generation and frees its pages."""
        self._generator.close()
        self._end()

    @property
    def result(self) -> Generation:
        """The answer so far; the whole one once the stream has ended."""
        return self._answer.result

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of the sampler's stages that are on, in order."""
        return self._answer.sampler.stages

    @property
    def sampling(self) -> SamplingParams:
        """How tokens are chosen: what was asked for, and the model's own values in place of what was not."""
        return self._answer.request.sampling

    def _run(self) -> Generator[Delta, None, None]:
        try:
            session = self._session = self._open_session()
            logits = self._prefill(session)
            while True:
                delta = self._answer.push(logits)
                if delta:
                    yield delta
                if self._answer.is_done:
                    break
                if session.is_full and not self._dropped(session):
                    delta = self._answer.end(StopCause.CONTEXT_END)
                    if delta:
                        yield delta
                    break
                logits = self._decode(session)
        finally:
            self._end()

    def _prefill(self, session: Session) -> NDArray[np.float32]:
        prompt, work = self._answer.request.prompt_tokens, self._answer.work
        work.n_cached_tokens = session.n_tokens
        start_s = time.perf_counter()
        logits = session.extend(prompt[session.n_tokens :], progress=self._progress)
        work.prefill_s = time.perf_counter() - start_s
        work.n_prefill_tokens = len(prompt) - work.n_cached_tokens
        return logits

    def _decode(self, session: Session) -> NDArray[np.float32]:
        work = self._answer.work
        start_s = time.perf_counter()
        logits = session.extend([self._answer.next_token])
        work.decode_s += time.perf_counter() - start_s
        work.n_decode_tokens += 1
        return logits

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._answer.end(StopCause.CANCELLED)
            self._on_end(self._session)

    def _dropped(self, session: Session) -> int:
        n_dropped = self._make_room(session) if self._make_room is not None else 0
        self._answer.work.n_dropped_tokens += n_dropped
        return n_dropped


def close_session(session: Session | None) -> None:
    """The `on_end` of a stream with a session of its own."""
    if session is not None:
        session.close()
