"""Where messages come from: a terminal with line editing, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.utils import is_dumb_terminal

from minfer.cli.chat_store import ChatStore
from minfer.cli.console import decoded, print_error

_QUOTES = '"""'
_PROMPT, _CONTINUATION = ">>> ", "... "


class Input(Protocol):
    """Gives what the user enters."""

    def read(self) -> str | None:
        """The next entry, without the quotes of one of several lines; None at the end.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            ParameterError: what was piped in is not UTF-8.
        """
        ...


class LineInput:
    """Lines from stdin; several between triple quotes are one entry."""

    def __init__(self, *, shows_prompt: bool = False) -> None:
        """
        Args:
            shows_prompt: for a terminal that can do nothing but write lines.
        """
        self._shows_prompt = shows_prompt

    def read(self) -> str | None:
        entry = self._line(_PROMPT)
        while entry is not None and is_open(entry):
            line = self._line(_CONTINUATION)
            if line is None:
                break
            entry += f"\n{line}"
        return None if entry is None else unquoted(entry)

    def _line(self, prompt: str) -> str | None:
        if self._shows_prompt:
            print(prompt, end="", file=sys.stderr, flush=True)  # noqa: T201
        data = sys.stdin.buffer.readline()
        return decoded(data).rstrip("\r\n") if data else None


class TerminalInput:
    """A line editor with history and completion. Enter sends, Alt-Enter breaks the line, and so does Enter as long as
    triple quotes are open."""

    def __init__(self, store: ChatStore | None, words: Mapping[str, Sequence[str]]) -> None:
        """
        Args:
            store, words: as for `open_input`.
        """
        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            multiline=True,
            prompt_continuation=_CONTINUATION,
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


def open_input(store: ChatStore | None, words: Mapping[str, Sequence[str]]) -> Input:
    """The input for what stdin is: a terminal that can move its cursor, one that can't, or no terminal at all.

    Args:
        store: where the history is; None keeps it in memory only.
        words: what Tab completes: commands, each with the words that may follow it.
    """
    if sys.stdin.isatty() and not is_dumb_terminal():
        return TerminalInput(store, words)
    return LineInput(shows_prompt=sys.stdin.isatty())


def is_open(entry: str) -> bool:
    """Whether triple quotes at the start of an entry have not been closed."""
    text = entry.strip()
    return text.startswith(_QUOTES) and (len(text) < 2 * len(_QUOTES) or not text.endswith(_QUOTES))


def unquoted(entry: str) -> str:
    """An entry without triple quotes around it."""
    text = entry.strip()
    if not text.startswith(_QUOTES):
        return entry
    return text.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")


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
