"""What is piped in."""

from __future__ import annotations

import errno
import io
import os
import select
import sys

from minfer.cli.console import print_warning
from minfer.errors import MinferError, ParameterError

_CHUNK_BYTES = 1 << 16
_TOLD_AFTER_S = 2.0
FIRST_BYTE_S = 30.0
"""How long a pipe may stay silent beside a prompt."""


class InputError(MinferError):
    """Stdin can't be read."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"can't read stdin: {error.strerror or error}")


def read_stdin() -> str:
    """All that is piped in, however long it takes; nothing if stdin is closed, or open for writing only.

    Raises:
        InputError: it can't be read.
        ParameterError: it is not UTF-8.
    """
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a program put something of its own in its place
        return decoded(sys.stdin.buffer.read())
    pieces = []
    try:
        while piece := _read(descriptor):
            pieces.append(piece)
    except OSError as error:
        if not is_closed(error):
            raise InputError(error) from error
    return decoded(b"".join(pieces))


def read_stdin_beside_prompt(first_byte_s: float = FIRST_BYTE_S) -> str:
    """What is piped in where a prompt is given too; nothing at a terminal.

    A program that runs minfer may leave its own stdin to it: a pipe, perhaps, that nobody writes to and nobody closes.
    So the first byte has to come in time; then the rest may take as long as it likes. The wait is told on stderr.
    Windows can't ask a pipe whether there is something in it: there the wait has no limit.

    Raises:
        InputError, ParameterError: as `read_stdin`.
    """
    if sys.stdin.isatty():
        return ""
    if os.name != "nt" and not _is_ready(min(_TOLD_AFTER_S, first_byte_s)):
        print_warning(
            f"nothing has come on stdin yet, to put before the prompt; waiting {first_byte_s:g} s for it "
            "(--no-stdin leaves it alone, --stdin waits as long as it takes)"
        )
        if not _is_ready(max(0.0, first_byte_s - _TOLD_AFTER_S)):
            print_warning("nothing came on stdin; the prompt is answered alone")
            return ""
    return read_stdin()


def decoded(data: bytes) -> str:
    """Piped bytes as text.

    Raises:
        ParameterError: they are not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise ParameterError(f"stdin is not UTF-8 text: byte {error.start} is 0x{byte:02X} ({error.reason})") from error


def undecoded(text: str) -> str | None:
    """What to say of a text from an argument or a terminal that has bytes which are no UTF-8, and which Python hands on
    as half characters; None where it has none."""
    for index, character in enumerate(text):
        if "\udc80" <= character <= "\udcff":
            return (
                f"is not UTF-8 text: character {index} is the byte 0x{ord(character) - 0xDC00:02X}. "
                "Does the terminal, or the file it comes from, have another encoding?"
            )
    return None


def is_closed(error: OSError) -> bool:
    """Whether there is no stdin to read, as for programs that are started by `nohup`."""
    return error.errno == errno.EBADF


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:  # whoever opened it does not want to wait, and we do
            select.select((descriptor,), (), ())


def _is_ready(timeout_s: float) -> bool:
    """Whether reading would not wait: there is something, or an end, or an error."""
    try:
        return bool(select.select((sys.stdin,), (), (), timeout_s)[0])
    except (OSError, ValueError):  # no descriptor, or one that select does not take: then reading tells
        return True
