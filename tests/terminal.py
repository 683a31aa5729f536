"""A pseudo-terminal with a program in it, and what its screen shows: tests type, and wait for what they expect."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

COLUMNS, LINES = 100, 200
PATIENCE_S = 20
"""how long to wait for something before the test fails"""


class _Screen(pyte.Screen):
    """Answers what a program asks of a terminal, such as where the cursor is."""

    def __init__(self, answer: int) -> None:
        super().__init__(COLUMNS, LINES)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        os.write(self._answer, data.encode())


class Terminal:
    """`minfer` with some arguments, at a terminal. A context manager: leaving it ends the program."""

    def __init__(self, *arguments: str | Path, cwd: Path, environment: Mapping[str, str]) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "minfer", *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm-256color", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C then reaches it as a signal
        )
        os.close(slave)
        self._screen = _Screen(self._master)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        """all that was written, escape sequences included"""

    def text(self) -> str:
        """What is on the screen, without empty lines at its end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def type(self, text: str | bytes) -> None:
        """Presses keys; "\r" is Enter, "\x03" Ctrl-C, "\x04" Ctrl-D."""
        data = text if isinstance(text, bytes) else text.encode()
        deadline_s = time.monotonic() + PATIENCE_S
        while data:
            # The program may wait for its own output to be taken before it takes more of ours.
            _, ready, _ = select.select([], [self._master], [], 0.01)
            if ready:
                data = data[os.write(self._master, data[:256]) :]
            while select.select([self._master], [], [], 0)[0] and self._read(deadline_s):
                pass

    def wait_for(self, expected: str, times: int = 1) -> str:
        """Waits until the screen shows a text so many times; gives the screen."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.text().count(expected) < times:
            if not self._read(deadline_s):
                raise AssertionError(f"{expected!r} is not there {times} times:\n{self.text()}")
        return self.text()

    def ask(self, entry: str) -> str:
        """Enters something at the prompt, waits for the next prompt, and gives what came between."""
        self.wait_for_prompt()
        n_before = self.text().count(">>>")
        self.type(f"{entry}\r")
        self.wait_for(">>>", n_before + 1)
        return self.text().split(">>>")[-2].partition("\n")[2].strip("\n")

    def wait_for_prompt(self) -> None:
        """Waits until the last line is a prompt with nothing behind it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.text().splitlines()[-1:] != [">>>"]:
            if not self._read(deadline_s):
                raise AssertionError(f"no prompt:\n{self.text()}")

    def end(self) -> int:
        """Waits until the program has ended; gives its exit status."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self._read(deadline_s):
            pass
        return self._process.wait(timeout=PATIENCE_S)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)

    def _read(self, deadline_s: float) -> bool:
        """Takes what the program has written; False if nothing came in time, or it has ended."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError as error:
            if error.errno != errno.EIO:  # what Linux says when the other side is closed
                raise
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)
