"""Standard streams that a program was started without, or that can't be written: a closed terminal, a full disk.

Python leaves `sys.stdout` empty where descriptor 1 is closed, gives that number to the next file that is opened, and
complains with tracebacks where a write fails. `repair_standard_streams` makes all of it plain: a write to stdout that
fails is one typed error, and what can't go to stderr goes nowhere.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO, cast

from minfer.errors import MinferError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDIN, _STDOUT, _STDERR = range(3)


class OutputError(MinferError):
    """Stdout is closed, or can't take any more. `reader_is_gone`: it is a pipe, and whoever read it has ended."""

    def __init__(self, error: OSError) -> None:
        self.reader_is_gone = isinstance(error, BrokenPipeError)
        why = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
        super().__init__(f"can't write to stdout: {why}")


def repair_standard_streams() -> None:
    """For the beginning of a program: opens what is closed, and replaces `sys.stdout` and `sys.stderr`.

    A missing stdin is empty. Writing to stdout raises `OutputError` once it fails, also where it was missing, and drops
    what comes after that. Writing to stderr never fails.
    """
    # In this order, since a descriptor that is opened takes the lowest number that is free.
    if sys.stdin is None:
        sys.stdin = open(_opened(_STDIN, os.O_RDONLY), encoding="utf-8")  # noqa: SIM115  # as long as the program runs
    # What is open for reading only refuses to be written, as what is closed does.
    sys.stdout = _guarded(sys.stdout, _STDOUT, os.O_RDONLY, reports=True)
    sys.stderr = _guarded(sys.stderr, _STDERR, os.O_WRONLY, reports=False)


class _Guarded(io.RawIOBase):
    """Writes to another stream; after an error it takes everything and drops it."""

    def __init__(self, raw: io.RawIOBase, *, reports: bool) -> None:
        self._raw = raw
        self._reports = reports
        self._has_failed = False

    def write(self, data: ReadableBuffer, /) -> int:
        n_bytes = memoryview(data).nbytes
        if self._has_failed:
            return n_bytes
        try:
            while (n_written := self._raw.write(data)) is None:  # a pipe that does not block, and is full
                select.select((), (self._raw,), ())
        except OSError as error:
            self._has_failed = True
            if self._reports:
                raise OutputError(error) from error
            return n_bytes
        return n_written

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()


def _guarded(stream: TextIO | None, descriptor: int, flags: int, *, reports: bool) -> TextIO:
    if stream is None:
        return _text(io.FileIO(_opened(descriptor, flags), "w", closefd=False), reports, "utf-8", "replace")
    if not isinstance(stream, io.TextIOWrapper):  # another program's, such as a notebook's
        return stream
    stream.flush()
    raw = cast(io.RawIOBase, getattr(stream.buffer, "raw", stream.buffer))  # unbuffered, there is nothing between
    return _text(raw, reports, stream.encoding, stream.errors)


def _text(raw: io.RawIOBase, reports: bool, encoding: str, errors: str | None) -> TextIO:
    buffer = io.BufferedWriter(_Guarded(raw, reports=reports))
    return io.TextIOWrapper(buffer, encoding, errors, line_buffering=not reports or raw.isatty())


def _opened(descriptor: int, flags: int) -> int:
    """Opens the null device in the place of a standard descriptor, if that is still free, or else elsewhere."""
    opened = os.open(os.devnull, flags)
    if opened == descriptor:
        os.set_inheritable(opened, True)
        return opened
    try:
        os.fstat(descriptor)
    except OSError:
        os.dup2(opened, descriptor)
        os.close(opened)
        return descriptor
    return opened
