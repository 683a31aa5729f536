"""The decode loop: prefill, sample, stop or go on."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.engine.results import Generation, Stats, StopCause
from minfer.engine.runtime import Runtime
from minfer.engine.session import ProgressCallback, Session
from minfer.engine.stops import StopMatcher
from minfer.errors import ParameterError
from minfer.sampling import Sampler, SamplingParams
from minfer.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What to generate.

    Raises:
        ParameterError: a value out of its range.
    """

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    continues_text: bool
    """whether the answer goes on with the prompt's text, and so may begin with a space of its own"""

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise ParameterError(f"max_tokens must be an integer of at least 1, not {self.max_tokens!r}")


class TextStream(Iterator[str]):
    """An answer as it is generated: iterate over its pieces. Their concatenation is `result.text`.

    Pieces are never empty and hold whole characters. The context length and all parameters are checked before the
    first piece. Dropping the stream, or `close()`, ends the generation; it then counts as cancelled.
    """

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._request = request
        self._progress = progress
        self._sampler = Sampler(request.sampling, runtime.hparams.n_vocab)
        self._matcher = StopMatcher(request.stop)
        self._tokens: list[int] = []
        self._pieces: list[str] = []
        self._n_prefill = self._n_decode = 0
        self._prefill_s = self._decode_s = 0.0
        self._cause: StopCause | None = None
        self._session = Session(runtime)
        self._session.check_room(len(request.prompt_tokens))
        self._generator = self._run()

    def __next__(self) -> str:
        return next(self._generator)

    def close(self) -> None:
        """Ends the generation and frees its pages."""
        self._generator.close()
        self._end(StopCause.CANCELLED)

    @property
    def result(self) -> Generation:
        """The answer so far; the whole one once the stream has ended."""
        cause = self._cause or StopCause.CANCELLED
        stats = Stats(self._n_prefill, self._prefill_s, self._n_decode, self._decode_s, self._sampler.seed)
        return Generation("".join(self._pieces), tuple(self._tokens), cause.finish_reason, cause, stats)

    def _run(self) -> Generator[str, None, None]:
        try:
            yield from self._decode()
        finally:
            self._end(StopCause.CANCELLED)

    def _decode(self) -> Iterator[str]:
        decoder = self._tokenizer.stream_decoder(special=False, at_start=not self._request.continues_text)
        logits = self._prefill()
        while True:
            token = self._sampler.sample(logits, [*self._request.prompt_tokens, *self._tokens])
            if token in self._tokenizer.eog_ids and not self._request.ignore_eos:
                self._cause = StopCause.END_OF_GENERATION
                break
            self._tokens.append(token)
            yield from self._show(self._matcher.push(decoder.push(token)))
            if self._stopped():
                break
            logits = self._step(token)
        if self._cause is not StopCause.STOP_STRING:
            # What was held back may itself complete a stop string.
            yield from self._show(self._matcher.push(decoder.finish()) + self._matcher.finish())

    def _prefill(self) -> NDArray[np.float32]:
        start_s = time.perf_counter()
        logits = self._session.extend(self._request.prompt_tokens, progress=self._progress)
        self._prefill_s = time.perf_counter() - start_s
        self._n_prefill = len(self._request.prompt_tokens)
        return logits

    def _step(self, token: int) -> NDArray[np.float32]:
        start_s = time.perf_counter()
        logits = self._session.extend([token])
        self._decode_s += time.perf_counter() - start_s
        self._n_decode += 1
        return logits

    def _stopped(self) -> bool:
        if self._matcher.matched is not None:
            self._cause = StopCause.STOP_STRING
        elif len(self._tokens) >= self._request.max_tokens:
            self._cause = StopCause.MAX_TOKENS
        elif self._session.is_full:
            self._cause = StopCause.CONTEXT_END
        return self._cause is not None

    def _show(self, piece: str) -> Iterator[str]:
        if piece:
            self._pieces.append(piece)
            yield piece

    def _end(self, cause: StopCause) -> None:
        self._cause = self._cause or cause
        self._session.close()
