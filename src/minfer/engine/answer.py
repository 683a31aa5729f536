"""An answer in the making: logits in, text out. It knows no model, so whoever steps one can carry many answers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from minfer.engine.results import Generation, Stats, StopCause, Work
from minfer.engine.stops import StopMatcher
from minfer.errors import ParameterError
from minfer.sampling import Sampler, SamplingParams, TokenLogprobs, VocabularyOps, token_logprobs
from minfer.text import Tokenizer

UNLIMITED: Final = -1
"""of `max_tokens`: the answer ends when the model, a stop string or the context ends it"""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What to generate.

    Raises:
        ParameterError: a value out of its range.
    """

    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    """at least 1, or `UNLIMITED`"""
    stop: tuple[str, ...]
    ignore_eos: bool
    continues_text: bool
    """whether the answer goes on with the prompt's text, and so may begin with a space of its own"""
    logprobs: int | None = None
    """how many of the likeliest tokens are told beside each token, with their log probabilities; None: no logprobs"""

    def __post_init__(self) -> None:
        n, n_top = self.max_tokens, self.logprobs
        if isinstance(n, bool) or not isinstance(n, int) or (n < 1 and n != UNLIMITED):
            raise ParameterError(f"max_tokens must be an integer of at least 1, or -1 for no limit, not {n!r}")
        if n_top is not None and (isinstance(n_top, bool) or not isinstance(n_top, int) or n_top < 0):
            raise ParameterError(f"logprobs must be None or an integer of at least 0, not {n_top!r}")


@dataclass(frozen=True)
class Delta:
    """Text that has become safe to show, and the tokens that it comes from.

    Text and tokens do not always move together: part of a character and the beginning of a stop string are held
    back, and a control token has no text. A token belongs to the delta in which the last of its text is shown.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    """one for each token, where they were asked for"""

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens)


class Answer:
    """One answer, token by token.

        delta = answer.push(logits)          # after the prompt, and after every `next_token`
        while not answer.is_done:
            delta = answer.push(model_step(answer.next_token))

    Who runs the model counts its work in `work`, and calls `end` if something but the answer itself ends it.

    Raises:
        ParameterError: an empty stop string, or more logprobs than there are tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, sampler: Sampler, request: GenerationRequest, ops: VocabularyOps | None = None
    ) -> None:
        """
        Args:
            ops: does the passes over the vocabulary for logprobs; None is NumPy.
        """
        if request.logprobs is not None and request.logprobs > tokenizer.n_vocab:
            raise ParameterError(f"logprobs is {request.logprobs}, and there are only {tokenizer.n_vocab} tokens")
        self.work = Work()
        self._sampler = sampler
        self._ops = ops
        self._request = request
        self._eog_ids = frozenset() if request.ignore_eos else tokenizer.eog_ids
        self._decoder = tokenizer.stream_decoder(special=False, at_start=not request.continues_text)
        self._matcher = StopMatcher(request.stop)
        self._history = list(request.prompt_tokens)
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._n_given = 0
        """tokens that a delta has had"""
        self._waiting: deque[int] = deque()
        """for each token that no delta has had, how many characters are shown when all of its text is"""
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
        logprobs = None if self._request.logprobs is None else tuple(self._logprobs)
        return Generation(self.text, self.tokens, cause.finish_reason, cause, stats, logprobs)

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
        if self._request.logprobs is not None:
            self._logprobs.append(token_logprobs(logits, token, self._request.logprobs, self._ops))
        text = self._decoder.push(token)
        self._n_decoded += len(text)
        self._waiting.append(self._n_decoded + self._decoder.is_pending)
        shown = self._matcher.push(text)
        if self._matcher.matched is not None:
            return self._end(StopCause.STOP_STRING, shown)
        if 0 < self._request.max_tokens <= self.n_tokens:
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
        rest = self._matcher.push(self._decoder.finish()) + self._matcher.finish()
        return self._delta(shown + rest, with_all_tokens=True)

    def _delta(self, shown: str, *, with_all_tokens: bool = False) -> Delta:
        if shown:
            self._pieces.append(shown)
            self._n_shown += len(shown)
        start = self._n_given
        while self._waiting and (with_all_tokens or self._waiting[0] <= self._n_shown):
            self._waiting.popleft()
            self._n_given += 1
        n_prompt = len(self._request.prompt_tokens)
        tokens = self._history[n_prompt + start : n_prompt + self._n_given]
        return Delta(shown, tuple(tokens), tuple(self._logprobs[start : self._n_given]))
