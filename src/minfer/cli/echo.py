"""What is typed while an answer is written: it waits for the next prompt, and does not show in the answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

if sys.platform != "win32":
    import termios


@contextmanager
def silent_keyboard() -> Iterator[None]:
    """Lets a terminal show nothing of what is typed; elsewhere, and on Windows, nothing changes."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    changed = termios.tcgetattr(sys.stdin)
    changed[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
