"""A chat that goes on: only what is new is computed, and the past keeps the tokens that it had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from minfer.engine.answer import Answer
from minfer.engine.chat_state import ChatState
from minfer.engine.context_shift import ChatContext, Fitted, TurnDropper, carry_over
from minfer.engine.conversation_file import save_conversation
from minfer.engine.generation import TextStream, close_session
from minfer.engine.options import ChatOptions, check_options, make_request
from minfer.engine.prompts import Message, with_prefill
from minfer.engine.results import Stats, StopCause, Work
from minfer.engine.runtime import Runtime
from minfer.engine.samplers import Samplers
from minfer.engine.session import Session
from minfer.engine.thinking import AnswerPart, continues_thinking, opens_thinking, split_stream, split_thinking
from minfer.engine.transcript import Transcript, common_prefix, follow
from minfer.engine.unpicklable import Unpicklable
from minfer.errors import ParameterError
from minfer.sampling import Sampler, SamplingParams
from minfer.text import Tokenizer


@dataclass(frozen=True)
class _Turn:
    """An answer that is being generated."""

    answer: Answer
    stream: TextStream
    room: TurnDropper
    before: ChatState
    """what is gone back to if nothing is generated"""
    starts_thinking: bool
    prefill: str
    """what the answer begins with"""


class Conversation(Unpicklable):
    """A conversation with a model; made by `Model.conversation`. A context manager: leaving it gives its pages back.

    `ask` and `regenerate` give streams, and a turn is complete when its stream has ended. Of a stream that is closed
    or interrupted, what was generated so far is kept as the answer; if that is nothing, the turn is taken back. A
    stream that is still open is closed by the next call.

    Every message keeps the tokens that it had when it was computed or generated, as long as the chat template writes
    it as before. The tokens follow from what was asked and answered alone: they are the same with and without `reuse`,
    and after saving and loading. Once turns have been dropped from the context, reuse matters to what comes next, since
    what is in the cache was computed when they were still there.

    One thread at a time may use it.
    """

    _instead = "Save it to a file, and load it in the other process with the same model"

    def __init__(
        self,
        runtime: Runtime,
        tokenizer: Tokenizer,
        samplers: Samplers,
        state: ChatState,
        *,
        context_shift: bool,
        reuse: bool,
        options: ChatOptions,
        session: Session | None = None,
    ) -> None:
        self._runtime = runtime
        self._tokenizer = tokenizer
        self._samplers = samplers
        self._state = state
        self._context_shift = context_shift
        self._reuse = reuse
        self._options = self._checked(options)
        self._session = session
        self._turn: _Turn | None = None
        self._work = Work()
        if state.messages and not state.transcript.spans:
            self._rewrite(state.messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, also what has been dropped from the context: mappings with `role` and `content`, and with
        `reasoning_content` where the model thought before its answer."""
        return self._state.messages

    @property
    def system(self) -> str | None:
        """The system prompt."""
        messages = self._state.messages
        return messages[0]["content"] if messages and messages[0]["role"] == "system" else None

    @property
    def n_forgotten(self) -> int:
        """How many of the messages after the system prompt have been dropped from the context."""
        return self._turn.room.fitted.n_forgotten if self._turn else self._state.n_forgotten

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the conversation as far as they are in the context; the end of the last turn is not yet."""
        turn = self._turn
        return turn.room.fitted.transcript.tokens + turn.answer.tokens if turn else self._state.transcript.tokens

    @property
    def n_tokens(self) -> int:
        """How many positions of the context the conversation takes."""
        return len(self.tokens)

    @property
    def options(self) -> ChatOptions:
        """What applies to every answer unless its call says otherwise."""
        return self._options.copy()

    @property
    def context_shift(self) -> bool:
        """Whether the oldest turns are dropped when the context is full; if not, answers end there."""
        return self._context_shift

    @context_shift.setter
    def context_shift(self, value: bool) -> None:
        self._context_shift = value

    @property
    def stats(self) -> Stats:
        """Sums over all answers, those that were taken back or generated again too; the seed is the last one's."""
        work = replace(self._work)
        if self._turn:
            work.add(self._turn.answer.work)
        sampler = self._turn.answer.sampler if self._turn else self._state.sampler
        return Stats.of(work, sampler.seed if sampler else 0)

    def set_options(self, **options: Unpack[ChatOptions]) -> None:
        """Sets options for all answers to come; the others stay. A seed starts the random numbers anew.

        Raises:
            ParameterError: an unknown option, or a value out of its range. Nothing has changed then.
        """
        merged = self._checked({**self._options, **check_options(options, ChatOptions)})
        self._finish()
        self._options = merged
        if "seed" in options:
            self._state = replace(self._state, sampler=None)

    def ask(self, text: str, **options: Unpack[ChatOptions]) -> TextStream:
        """Says something, and gives the answer as a stream. Nothing is computed before its first piece is asked for.

        Args:
            text: the message.
            options: for this answer alone. `Model.generate` explains them.

        Raises:
            ParameterError: an empty message, an unknown option, or a value out of its range.
            ContextError: the message does not fit into the context, or, without `context_shift`, the conversation.
            TemplateError: the chat template is missing, or fails.
        """
        if not isinstance(text, str) or not text.strip():
            raise ParameterError(f"a message must be text that is not empty, not {text!r}")
        self._finish()
        return self._begin((*self._state.messages, {"role": "user", "content": text}), options)

    def regenerate(self, **options: Unpack[ChatOptions]) -> TextStream:
        """Answers the last message anew, or for the first time if it has no answer. The random numbers go on, so that
        the answer is another one, unless `seed` is given.

        Raises:
            ParameterError: there is nothing to answer; or as `ask`.
        """
        self._finish()
        messages = self._state.messages
        if messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]
        if not messages or messages[-1]["role"] != "user":
            raise ParameterError("there is no answer to generate anew")
        return self._begin(messages, options)

    def parts(self, stream: TextStream) -> Iterator[AnswerPart]:
        """The pieces of a stream that this conversation has just given, told apart into thinking and answer."""
        return split_stream(stream, bool(self._turn and self._turn.stream is stream and self._turn.starts_thinking))

    def undo(self) -> tuple[Message, ...]:
        """Takes the last turn back: the last question and its answer, which are returned.

        Raises:
            ParameterError: there is none.
        """
        self._finish()
        messages = self._state.messages
        start = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=None)
        if start is None:
            raise ParameterError("there is no turn to take back")
        self._rewrite(messages[:start])
        return messages[start:]

    def clear(self) -> None:
        """Forgets all but the system prompt."""
        self._finish()
        self._rewrite(self._state.messages[:1] if self.system is not None else ())

    def set_system(self, text: str | None) -> None:
        """Sets the system prompt, or removes it. What was said stays, and is computed anew with the next answer.

        Raises:
            TemplateError: the chat template does not take one.
        """
        self._finish()
        said = self._state.messages[1:] if self.system is not None else self._state.messages
        self._rewrite(said if text is None else ({"role": "system", "content": text}, *said))

    def save(self, path: str | Path, *, with_cache: bool = True, overwrite: bool = False) -> None:
        """Writes the conversation to a file, from which `Model.load_conversation` goes on, bit for bit. A saved
        conversation or session that is there is replaced.

        Args:
            path: the file.
            with_cache: whether what has been computed is saved too. Without it the file is small, and the conversation
                is computed anew when it goes on: with the same result, unless turns have been dropped from the context.
            overwrite: whether a file of any other kind is replaced, too.

        Raises:
            ForeignFileError: a file of another kind is there.
            SessionFileError: it can't be written there.
        """
        self._finish()
        session = self._session if with_cache else None
        if session is not None:
            # What has been taken back is not written.
            session.truncate(common_prefix(session.tokens, self._state.transcript.tokens))
        save_conversation(
            path,
            self._runtime,
            session,
            self._state,
            self._options,
            self._context_shift,
            overwrite=overwrite,
        )

    def close(self) -> None:
        """Ends an open answer and gives the pages back."""
        self._finish()
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, options: ChatOptions) -> ChatOptions:
        options = check_options(options, ChatOptions)
        self._samplers.answer(make_request(options, self._samplers.defaults, (), continues_text=False))
        return options

    def _context(self, options: ChatOptions, *, continues: bool = False) -> ChatContext:
        variables = options.get("template_variables", {})
        return ChatContext(self._tokenizer, self._runtime.n_ctx, self._context_shift, variables, continues)

    def _begin(self, messages: tuple[Message, ...], options: ChatOptions) -> TextStream:
        options = check_options(options, ChatOptions)
        merged: ChatOptions = {**self._options, **options}
        prefill = merged.get("prefill", "")
        asked, continues = with_prefill(messages, prefill), bool(prefill.strip())
        context = self._context(merged, continues=continues)
        fitted = context.fit(self._state.transcript, asked, self._state.n_forgotten)
        request = make_request(merged, self._samplers.defaults, fitted.transcript.tokens, continues_text=continues)
        sampler = self._sampler(request.sampling, starts_anew="seed" in options)
        answer = self._samplers.answer(request, sampler)
        answer.work.n_dropped_tokens = fitted.n_dropped
        room = TurnDropper(context, asked, fitted, answer)
        stream = TextStream(
            answer,
            lambda: self._open(fitted),
            on_end=self._end,
            make_room=room if self._context_shift else None,
            progress=merged.get("progress"),
        )
        starts_thinking = continues_thinking(prefill) if continues else opens_thinking(fitted.transcript.text)
        self._turn = _Turn(answer, stream, room, self._state, starts_thinking, prefill if continues else "")
        self._state = replace(self._state, messages=messages)
        return stream

    def _sampler(self, params: SamplingParams, *, starts_anew: bool) -> Sampler:
        """A sampler that goes on where the last one stopped, perhaps with other parameters."""
        sampler, last = self._samplers.make(params), self._state.sampler
        if last is not None and not starts_anew:
            new = sampler.state()
            kept_mu = None if new.mu is None else last.mu
            sampler.restore(replace(last, mu=new.mu if kept_mu is None else kept_mu, grammar=new.grammar))
        return sampler

    def _open(self, fitted: Fitted) -> Session:
        """The session as it is at the start of an answer."""
        tokens = fitted.transcript.tokens
        if self._session is None or not self._reuse:
            close_session(self._session)
            self._session = Session(self._runtime, reuse=tokens if self._reuse else ())
        else:
            carry_over(self._session, fitted, tokens)
            self._session.truncate(min(self._session.n_tokens, len(tokens) - 1))
        return self._session

    def _finish(self) -> None:
        """Closes a stream that is still open."""
        if self._turn is not None:
            self._turn.stream.close()

    def _end(self, session: Session | None) -> None:
        """Makes what was generated the last message."""
        turn, self._turn = self._turn, None
        assert turn is not None
        if not self._reuse:
            close_session(session)
            self._session = None
        answer = turn.answer
        self._work.add(answer.work)
        if answer.cause is StopCause.CANCELLED and answer.n_tokens == 0:
            self._state = turn.before
            return
        # A prefill that begins with thoughts opens them itself.
        thinking, content = split_thinking(turn.prefill + answer.text, turn.starts_thinking and not turn.prefill)
        message = {"role": "assistant", "content": content} | ({"reasoning_content": thinking} if thinking else {})
        prompt = turn.room.fitted
        self._state = ChatState(
            messages=(*self._state.messages, message),
            n_forgotten=prompt.n_forgotten,
            transcript=prompt.transcript.answered(self._tokenizer, answer.tokens),
            sampler=answer.sampler.state(),
        )

    def _rewrite(self, messages: Sequence[Message]) -> None:
        """Changes what was said."""
        n_system = int(bool(messages) and messages[0]["role"] == "system")
        n_said, n_forgotten, transcript = len(messages) - n_system, self._state.n_forgotten, Transcript()
        if n_forgotten >= n_said:
            n_forgotten = 0
        if n_said:
            prompt = self._context(self._options).render(messages, n_forgotten, add_generation_prompt=False)
            transcript = follow(self._tokenizer, self._state.transcript, prompt)
        self._state = replace(self._state, messages=tuple(messages), n_forgotten=n_forgotten, transcript=transcript)
        if self._session is not None and not common_prefix(self._session.tokens, transcript.tokens):
            self._session.close()
            self._session = None
