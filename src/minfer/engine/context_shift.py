"""Making room in a full context: whole turns go, the oldest first, and what is left moves up.

A turn is a question with everything up to the next one. The system prompt and the last turn always stay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from minfer.engine.answer import Answer
from minfer.engine.prompts import Message
from minfer.engine.session import Session
from minfer.engine.transcript import Transcript, common_prefix, follow, without
from minfer.errors import ContextError
from minfer.text import Tokenizer

N_SINKS: Final = 4
"""Tokens at the start of raw text that always stay."""


@dataclass(frozen=True)
class Fitted:
    """A prompt that fits into the context."""

    transcript: Transcript
    n_forgotten: int
    """messages after the system prompt that are not in it"""
    whole: Transcript
    """what it was before turns were dropped"""
    gone: range = range(0)
    """the tokens of `whole` that were dropped; empty also if its tokens changed in another way"""

    @property
    def n_dropped(self) -> int:
        """By how many tokens the prompt became shorter."""
        return self.whole.n_tokens - self.transcript.n_tokens


@dataclass(frozen=True)
class ChatContext:
    """How messages become a prompt in a context of a given size."""

    tokenizer: Tokenizer
    n_ctx: int
    shifts: bool
    """whether turns are dropped to make room"""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """for the chat template"""
    continues: bool = False
    """whether the last message is the beginning of the answer"""

    @property
    def n_wanted(self) -> int:
        """How many tokens are left when room is made: three quarters, so that it is not made again for each answer."""
        return self.n_ctx - self.n_ctx // 4

    def render(self, messages: Sequence[Message], n_forgotten: int, *, add_generation_prompt: bool = True) -> str:
        """The prompt of messages without the oldest ones.

        Raises:
            TemplateError: the chat template is missing, or fails.
        """
        visible = [*messages[: _n_system(messages)], *messages[_n_system(messages) + n_forgotten :]]
        return self.tokenizer.render_chat(
            visible,
            None,
            add_generation_prompt,
            continue_final_message=self.continues and add_generation_prompt,
            trust_model=False,
            **self.variables,
        )

    def fit(self, past: Transcript, messages: Sequence[Message], n_forgotten: int) -> Fitted:
        """The prompt of messages that go on from a past, with turns dropped where that is needed and allowed.

        Raises:
            ContextError: it does not fit.
            TemplateError: the chat template is missing, or fails.
        """
        whole = follow(self.tokenizer, past, self.render(messages, n_forgotten))
        if whole.n_tokens <= self.n_ctx:
            return Fitted(whole, n_forgotten, whole)
        fitted = self.shorten(whole, messages, n_forgotten) if self.shifts else None
        if fitted is None:
            raise self._error(whole, messages, n_forgotten)
        return fitted

    def shorten(
        self, whole: Transcript, messages: Sequence[Message], n_forgotten: int, n_after: int = 0
    ) -> Fitted | None:
        """The prompt without as many of the oldest turns as it takes; None if it does not fit with the last one alone.

        Args:
            whole: the prompt.
            messages: what it was rendered from.
            n_forgotten: how many of them are not in it already.
            n_after: tokens of the answer that stand behind it in the context.
        """
        candidates = [n for n in _turn_starts(messages) if n > n_forgotten]
        if not candidates:
            return None

        def cut(n: int) -> Fitted:
            transcript, gone = without(self.tokenizer, whole, self.render(messages, n))
            return Fitted(transcript, n, whole, gone)

        def is_enough(n: int) -> bool:
            return cut(n).transcript.n_tokens + n_after <= self.n_wanted

        index = bisect_left(candidates, True, key=is_enough)  # the more turns go, the shorter it is
        fitted = cut(candidates[min(index, len(candidates) - 1)])
        return fitted if fitted.transcript.n_tokens + n_after <= self.n_ctx else None

    def _error(self, whole: Transcript, messages: Sequence[Message], n_forgotten: int) -> ContextError:
        last = max(_turn_starts(messages), default=0)
        n_tokens = follow(self.tokenizer, Transcript(), self.render(messages, last)).n_tokens
        if n_tokens > self.n_ctx or last <= n_forgotten:
            what, todo = "the message, with the system prompt and what the chat template adds, has", "shorten it"
        else:
            n_tokens = whole.n_tokens
            what, todo = "the conversation has", "start a new one, let the context shift"
        return ContextError(
            f"{what} {n_tokens} tokens, which do not fit into the context of {self.n_ctx}; "
            f"{todo}, or load the model with a larger n_ctx",
            n_positions=n_tokens,
            n_ctx=self.n_ctx,
        )


def carry_over(session: Session, fitted: Fitted, tokens: Sequence[int]) -> None:
    """Makes a session the longest beginning of `tokens` that it can be without computing anything.

    Args:
        session: of what `fitted.whole` was made from, perhaps with more behind it.
        fitted: which tokens are to be taken out.
        tokens: those of `fitted.transcript`, perhaps with more behind them.

    Raises:
        UnsupportedError: the model's keys can't be moved.
    """
    if fitted.gone and fitted.gone.stop <= common_prefix(session.tokens, fitted.whole.tokens):
        session.drop(fitted.gone.start, fitted.gone.stop)
    session.truncate(common_prefix(session.tokens, tokens))


class TurnDropper:
    """Makes room while an answer is generated."""

    def __init__(self, context: ChatContext, messages: Sequence[Message], fitted: Fitted, answer: Answer) -> None:
        self._context = context
        self._messages = messages
        self._answer = answer
        self.fitted = fitted
        """the prompt as it is now"""

    def __call__(self, session: Session) -> int:
        """Drops turns, and says how many tokens the prompt became shorter; 0 if there are none to drop.

        Raises:
            UnsupportedError: the model's keys can't be moved.
        """
        answer, now = self._answer, self.fitted
        shorter = self._context.shorten(now.transcript, self._messages, now.n_forgotten, answer.n_tokens)
        if shorter is None:
            return 0
        tokens = (*shorter.transcript.tokens, *answer.tokens[:-1])
        carry_over(session, shorter, tokens)
        if session.n_tokens < len(tokens):
            answer.work.n_prefill_tokens += len(tokens) - session.n_tokens
            session.extend(tokens[session.n_tokens :])
        self.fitted = shorter
        return shorter.n_dropped


def drop_half(session: Session) -> int:
    """Drops the older half of a sequence that has no turns, but for its first tokens; says how many tokens are gone.

    Models attend to the first tokens whatever they are, and lose their way without them (Xiao et al. 2023,
    arXiv:2309.17453); a BOS token is among them.

    Raises:
        UnsupportedError: the model's keys can't be moved.
    """
    n_dropped = (session.n_tokens - N_SINKS) // 2
    if n_dropped > 0:
        session.drop(N_SINKS, N_SINKS + n_dropped)
    return max(n_dropped, 0)


def _n_system(messages: Sequence[Message]) -> int:
    return int(bool(messages) and messages[0]["role"] == "system")


def _turn_starts(messages: Sequence[Message]) -> list[int]:
    """Where turns begin, counted in messages after the system prompt."""
    said = messages[_n_system(messages) :]
    return [index for index, message in enumerate(said) if message["role"] == "user"]
