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
from minfer.cli.console import print_error


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
            return unquoted(self._session.prompt())
        except EOFError:
            return None


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


def _history(store: ChatStore | None) -> History:
    if store is None:
        return InMemoryHistory()
    try:
        return FileHistory(str(store.prepare_history()))
    except OSError as error:
        print_error(f"the input history {store.history} can't be used: {error.strerror or error}")
        return InMemoryHistory()
