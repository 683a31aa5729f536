"""A line editor with history and completion, for terminals that can move their cursor."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from minfer.cli.chat_input import CONTINUATION, PROMPT, is_open, unquoted
from minfer.cli.chat_store import ChatStore
from minfer.cli.console import print_warning
from minfer.cli.stdin import undecoded
from minfer.errors import ParameterError


class TerminalInput:
    """A line editor with history and completion. Enter sends, Alt-Enter breaks the line, and so does Enter as long as
    triple quotes are open."""

    def __init__(self, store: ChatStore | None, words: Mapping[str, Sequence[str]]) -> None:
        """
        Args:
            store, words: as for `open_input`.
        """
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=_history(store),
            completer=_CommandCompleter(words),
            complete_while_typing=False,
            key_bindings=_keys(),
            # Answers that are piped somewhere have nothing of the editor in them.
            output=None if sys.stdout.isatty() else create_output(sys.stderr),
        )

    def read(self) -> str | None:
        try:
            entry = self._session.prompt()
        except EOFError:
            return None
        wrong = undecoded(entry)
        if wrong is not None:
            raise ParameterError(f"what was entered {wrong}")
        return unquoted(entry)


class _CommandCompleter(Completer):
    """Completes a command, and the first word after it."""

    def __init__(self, words: Mapping[str, Sequence[str]]) -> None:
        self._words = words

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        command, space, typed = document.text_before_cursor.partition(" ")
        if space:
            candidates: Iterable[str] = self._words.get(command, ())
        else:
            candidates, typed = (self._words if command.startswith("/") else ()), command
        for candidate in candidates:
            if candidate.startswith(typed):
                yield Completion(candidate, -len(typed))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _KeptHistory(FileHistory):
    """A history that goes on without its file once that can't be written."""

    _has_failed = False

    def store_string(self, string: str) -> None:
        if self._has_failed:
            return
        try:
            super().store_string(string)
        except OSError as error:
            self._has_failed = True
            print_warning(_unkept(self.filename, error))


def _history(store: ChatStore | None) -> History:
    if store is None:
        return InMemoryHistory()
    try:
        return _KeptHistory(str(store.prepare_history()))
    except OSError as error:
        print_warning(_unkept(store.history, error))
        return InMemoryHistory()


def _unkept(file: object, error: OSError) -> str:
    why = error.strerror or str(error)
    return f"what is entered can't be kept in {file}: {why}; MINFER_CACHE_DIR names another directory"
