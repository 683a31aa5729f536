"""The loop of `minfer chat`: an entry, an answer, until the end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from minfer.cli.chat_commands import run_command
from minfer.cli.chat_input import Input
from minfer.cli.chat_store import ChatStore
from minfer.cli.chat_view import AnswerView
from minfer.cli.console import Spinner, print_error, print_warning
from minfer.cli.echo import silent_keyboard
from minfer.cli.interrupts import Interrupts
from minfer.cli.stdin import InputError
from minfer.cli.streams import OutputError
from minfer.engine import Conversation, Generation, Model, ProgressCallback, StopCause, TextStream
from minfer.errors import MinferError, SessionFileError


class _StoppedError(Exception):
    """Ctrl-C while a prompt is read."""


class Chat:
    """One run of `minfer chat`."""

    def __init__(
        self, model: Model, conversation: Conversation, store: ChatStore, *, is_interactive: bool, saves: bool
    ) -> None:
        """
        Args:
            is_interactive: whether somebody sits at a terminal: Ctrl-C then stops an answer, and not the program.
            saves: whether the conversation is saved after each turn.
        """
        self.model = model
        self.conversation = conversation
        self.store = store
        self.last: TextStream | None = None
        """the last answer"""
        self.has_failed = False
        self.is_over = False
        self._is_interactive = is_interactive
        self._saves = saves
        self._automatic: Path | None = None
        self._source: Input | None = None
        self._view = AnswerView()

    @property
    def is_saved(self) -> bool:
        """Whether the conversation has been saved automatically."""
        return self._automatic is not None

    def run(self, source: Input) -> None:
        """Answers entries until there are no more."""
        self._source = source
        while not self.is_over:
            try:
                entry = source.read()
                if entry is None:
                    return
                self._take(entry)
            except KeyboardInterrupt:
                if not self._is_interactive:
                    raise
                self.say("(Ctrl-D or /exit leaves)")
            except (InputError, OutputError):  # the next entry would meet the same
                raise
            except MinferError as error:
                self.has_failed = True
                print_error(str(error))

    def say(self, text: str) -> None:
        """Tells the user something that is no answer: on stderr, so that a pipe gets answers alone."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    def confirms(self, question: str) -> bool:
        """Asks for a yes or no at a terminal; no where nobody sits at one."""
        if not self._is_interactive or self._source is None:
            return False
        self.say(f"{question} [y/N]")
        return (self._source.read() or "").strip().lower() in ("y", "yes")

    def ask(self, text: str) -> None:
        """Answers a message."""
        self._answer(
            lambda progress: self.conversation.ask(text, progress=progress),
            "(stopped before the answer began; the message is not part of the conversation)",
        )

    def regenerate(self) -> None:
        """Answers the last message anew."""
        self._answer(
            lambda progress: self.conversation.regenerate(progress=progress),
            "(stopped before the answer began; the one before stays)",
        )

    def change_conversation(self, conversation: Conversation) -> None:
        """Goes on with another conversation; the one before stays where it was saved."""
        self.conversation.close()
        self.conversation = conversation
        self.start_new_file()

    def start_new_file(self) -> None:
        """What is saved automatically from now on does not replace what was."""
        self._automatic = None

    def save_automatically(self) -> None:
        """Saves what was said, so that it can be gone on with, even if the program is killed."""
        if not self._saves or all(message["role"] == "system" for message in self.conversation.messages):
            return
        try:
            self._automatic = self._automatic or self.store.new_automatic()
            self.conversation.save(self._automatic, with_cache=False)
        except SessionFileError as error:
            self._saves = False
            self._automatic = None
            print_warning(f"{error}; the conversation is no longer saved automatically")

    def _take(self, entry: str) -> None:
        text = entry.strip()
        if text.startswith("/") and not text.startswith("//"):
            run_command(self, text)
        elif text:
            self.ask(entry.replace("//", "/", 1) if text.startswith("//") else entry)

    def _answer(self, start: Callable[[ProgressCallback], TextStream], without_answer: str) -> None:
        spinner = Spinner("reading the prompt")
        n_forgotten = self.conversation.n_forgotten
        with silent_keyboard(), Interrupts() if self._is_interactive else nullcontext() as interrupts:

            def progress(n: int, n_tokens: int) -> None:
                spinner.update(f"reading the prompt: {n} of {n_tokens} tokens")
                if interrupts is not None and interrupts.requested:
                    raise _StoppedError

            try:
                self.last = stream = start(progress)
                try:
                    self._show(stream, spinner, interrupts)
                finally:
                    stream.close()
            finally:
                spinner.stop()
        result = stream.result
        if result.stop_cause is StopCause.CANCELLED:
            self.say("(stopped)" if result.tokens else without_answer)
        self._explain(result, n_forgotten)
        self.save_automatically()

    def _show(self, stream: TextStream, spinner: Spinner, interrupts: Interrupts | None) -> None:
        try:
            for part in self.conversation.parts(stream):
                spinner.stop()
                self._view.write(part)
                if interrupts is not None and interrupts.requested:
                    break
        except _StoppedError:
            spinner.stop()
        finally:
            self._view.end()

    def _explain(self, result: Generation, n_forgotten: int) -> None:
        """Says what the answer alone does not show."""
        conversation = self.conversation
        if result.stop_cause is StopCause.MAX_TOKENS:
            self.say(f"(stopped after {len(result.tokens)} tokens; /set max_tokens changes the limit)")
        if result.stop_cause is StopCause.CONTEXT_END:
            todo = "/undo or /clear makes room"
            if not conversation.context_shift:
                todo = f"/set context_shift on lets the oldest turns go, {todo}"
            self.say(f"(stopped: the context of {self.model.n_ctx} tokens is full; {todo})")
        if result.stats.n_dropped_tokens:
            said = conversation.messages[int(conversation.system is not None) :]
            gone = [message for message in said[n_forgotten : conversation.n_forgotten] if message["role"] == "user"]
            turns = "turn" if len(gone) == 1 else f"{len(gone)} turns"
            n_tokens = result.stats.n_dropped_tokens
            self.say(f"(the context was full: the model no longer sees the oldest {turns}, {n_tokens} tokens)")
