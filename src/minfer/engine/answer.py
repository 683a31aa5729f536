"""An answer in the making: logits in, text out. It knows no model, so whoever steps one can carry many answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minfer.engine.results import Generation, Stats, StopCause, Work
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


@dataclass(frozen=True)
class Delta:
    """Text that has become safe to show, and the tokens that it comes from.

    Text and tokens do not always move together: part of a character and the beginning of a stop string are held
    back, and a control token has no text. A token belongs to the delta in which the last of its text is shown.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens)


class Answer:
    """One answer, token by token.

        delta = answer.push(logits)          # after the prompt, and after every `next_token`
        while not answer.is_done:
            delta = answer.push(model_step(answer.next_token))

    Who runs the model counts its work in `work`, and calls `end` if something but the answer itself ends it.

    Raises:
        ParameterError: an empty stop string.
    """

    def __init__(self, tokenizer: Tokenizer, sampler: Sampler, request: GenerationRequest) -> None:
        self.work = Work()
        self._sampler = sampler
        self._request = request
        self._eog_ids = frozenset() if request.ignore_eos else tokenizer.eog_ids
        self._decoder = tokenizer.stream_decoder(special=False, at_start=not request.continues_text)
        self._matcher = StopMatcher(request.stop)
        self._history = list(request.prompt_tokens)
        self._pieces: list[str] = []
        self._waiting: deque[tuple[int, int]] = deque()
        """tokens not yet given out, each with how many characters are shown when all of its text is"""
        self._n_decoded = self._n_shown = 0
        self._cause: StopCause | None = None

    @property
    def request(self) -> GenerationRequest:
        return self._request

    @property
    def sampler(self) -> Sampler:
        return self._sampler

    @property
    def tokens(self) -> tuple[int, ...]:
        """What was generated so far, without the end-of-generation token."""
        return tuple(self._history[len(self._request.prompt_tokens) :])

    @property
    def n_tokens(self) -> int:
        return len(self._history) - len(self._request.prompt_tokens)

    @property
    def text(self) -> str:
        """What was shown so far."""
        return "".join(self._pieces)

    @property
    def is_done(self) -> bool:
        return self._cause is not None

    @property
    def cause(self) -> StopCause | None:
        """What ended the answer; None while it goes on."""
        return self._cause

    @property
    def next_token(self) -> int:
        """What the sequence is to be extended with for the next logits.

        Raises:
            ParameterError: nothing has been generated yet, or the answer is done.
        """
        if self.is_done or not self.n_tokens:
            raise ParameterError("there is no next token: the answer is done, or has not begun")
        return self._history[-1]

    @property
    def result(self) -> Generation:
        """The answer so far; one that is not done counts as cancelled."""
        cause = self._cause or StopCause.CANCELLED
        stats = Stats.of(self.work, self._sampler.seed)
        return Generation(self.text, self.tokens, cause.finish_reason, cause, stats)

    def push(self, logits: NDArray[np.float32]) -> Delta:
        """Takes the logits f32 [n_vocab] that follow the prompt or the last token, and chooses the next token.

        Raises:
            ModelError: the logits hold NaN or infinity.
            ParameterError: they have the wrong shape, or the parameters leave no token to draw.
        """
        token = self._sampler.sample(logits, self._history)
        if token in self._eog_ids:
            return self.end(StopCause.END_OF_GENERATION)
        self._history.append(token)
        text = self._decoder.push(token)
        self._n_decoded += len(text)
        self._waiting.append((token, self._n_decoded + self._decoder.is_pending))
        shown = self._matcher.push(text)
        if self._matcher.matched is not None:
            return self._end(StopCause.STOP_STRING, shown)
        if self.n_tokens >= self._request.max_tokens:
            return self._end(StopCause.MAX_TOKENS, shown)
        return self._delta(shown)

    def end(self, cause: StopCause) -> Delta:
        """Ends an answer that is not done, and gives what was held back; of a cancelled one nothing more is shown."""
        return Delta() if self.is_done else self._end(cause, "")

    def _end(self, cause: StopCause, shown: str) -> Delta:
        self._cause = cause
        if cause in (StopCause.STOP_STRING, StopCause.CANCELLED):
            return self._delta(shown)
        # What was held back may itself complete a stop string.
        delta = self._delta(shown + self._matcher.push(self._decoder.finish()) + self._matcher.finish())
        rest = tuple(token for token, _ in self._waiting)
        return Delta(delta.text, delta.tokens + rest)

    def _delta(self, shown: str) -> Delta:
        if shown:
            self._pieces.append(shown)
            self._n_shown += len(shown)
        tokens = []
        while self._waiting and self._waiting[0][1] <= self._n_shown:
            tokens.append(self._waiting.popleft()[0])
        return Delta(shown, tuple(tokens))
