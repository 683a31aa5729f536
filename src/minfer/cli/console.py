"""What all verbs share: errors as one clear message, progress on stderr, and a clean end on Ctrl-C or a closed pipe."""

from __future__ import annotations

import functools
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

import minfer
from minfer.cli.fetching import fetch_model
from minfer.cli.streams import OutputError
from minfer.cli.wording import as_options, with_context_option
from minfer.errors import MinferError, MinferWarning, ParameterError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141
_SILENT_S = 1.0
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

P = ParamSpec("P")


class UsageError(ParameterError):
    """A command that can't be meant as it stands; the message shows one that can."""


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Makes a verb end as a user expects: `error: ...` and exit code 1 for anything that is not a bug of ours."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with ends_plainly(), _plain_warnings():
            command(*args, **kwargs)

    return run


@contextmanager
def ends_plainly() -> Iterator[None]:
    """Turns what is not a bug of ours into a message and an exit status.

    Raises:
        SystemExit: in place of those errors.
    """
    try:
        yield
    except MinferError as error:
        if isinstance(error, OutputError) and error.reader_is_gone:
            raise SystemExit(EXIT_CLOSED_PIPE) from None
        print_error(as_options(str(error)))
        raise SystemExit(EXIT_USAGE if isinstance(error, UsageError) else EXIT_ERROR) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def print_error(message: str) -> None:
    """One message on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        Text("error: ", style="bold red"), with_context_option(message), sep="", markup=False
    )


def print_warning(message: str) -> None:
    """One line on stderr about something that works, but not as the user might expect."""
    print(f"warning: {with_context_option(message)}", file=sys.stderr, flush=True)  # noqa: T201


def write_text(text: str, end: str = "") -> None:
    """Writes to stdout at once, whatever its encoding can't hold as `?`."""
    stream: TextIO = sys.stdout
    data = text + end
    try:
        stream.write(data)
    except UnicodeEncodeError:
        encoding = stream.encoding or "utf-8"
        stream.write(data.encode(encoding, "replace").decode(encoding))
    stream.flush()


def printable(text: str) -> str:
    """Text from a model without control characters, which could move a terminal's cursor or worse; tabs and line
    breaks stay."""
    return _CONTROLS.sub("\ufffd", text)


class ProgressBar:
    """The progress of something long, on stderr: a bar on a terminal, elsewhere a line if it takes over a second."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar: RichProgress | None = None
        self._line: threading.Timer | None = None

    def start(self, description: str, total_bytes: int | None) -> None:
        if not self._console.is_terminal:
            show = functools.partial(self._console.print, f"{description} ...", highlight=False, markup=False)
            self._line = threading.Timer(_SILENT_S, show)
            self._line.daemon = True
            self._line.start()
            return
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
        self._bar = RichProgress(
            *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=self._console, transient=True
        )
        self._bar.add_task(description, total=total_bytes)
        self._bar.start()

    def advance(self, n_bytes: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], n_bytes)

    def finish(self) -> None:
        if self._line is not None:
            self._line.cancel()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Spinner:
    """A line on stderr that says what is being waited for, while there is nothing to show yet; for terminals only."""

    def __init__(self, text: str) -> None:
        self._status = Console(stderr=True).status(text) if sys.stderr.isatty() and sys.stdout.isatty() else None
        if self._status is not None:
            self._status.start()

    def update(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class _Exclusive:
    """A bar that takes the place of a spinner."""

    def __init__(self, bar: ProgressBar, spinner: Spinner) -> None:
        self._bar = bar
        self._spinner = spinner

    def start(self, description: str, total_bytes: int | None) -> None:
        self._spinner.stop()
        self._bar.start(description, total_bytes)

    def advance(self, n_bytes: int) -> None:
        self._bar.advance(n_bytes)

    def finish(self) -> None:
        self._bar.finish()


def open_model(
    name: str,
    n_ctx: int | None,
    threads: int | None,
    backend: str | None,
    cache_type: str | None,
    chat_template: str | None,
    spinner: Spinner,
) -> minfer.Model:
    """Opens a model, with a progress bar in place of the spinner where that takes long.

    Raises:
        MinferError: as `minfer.load`.
    """
    progress = _Exclusive(ProgressBar(), spinner)
    path = fetch_model(name, progress)
    return minfer.load(path, n_ctx, threads, backend, cache_type, chat_template=chat_template, progress=progress)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Shows our own warnings as one line on stderr, each once."""
    told: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", MinferWarning)
        show = warnings.showwarning

        def one_line(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, MinferWarning):
                if str(message) in told:
                    return
                told.add(str(message))
                print_warning(str(message))
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = one_line
        yield
