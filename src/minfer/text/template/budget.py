"""What one rendering of a chat template may use: work, memory and time.

A template is a program from a file that anyone may have written. Jinja's sandbox keeps it from Python's insides, but
not from `'x' * 10**9`, from a loop that never ends, or from a list that holds another one twice, on forty levels. A
thread that runs such a thing can't be ended from outside, so every step of a rendering asks here first (`sandbox` sees
to that).

A unit is about a byte: a character counts one, an element of a list eight. A rendering may use a fixed number of them,
and more with more input. What counts is all that is ever made, not what is alive at a time. This bounds memory, and
most of the work. Steps that make little out of much (`x in long_list`) are bounded by computing time: the thread's own,
not the clock's, so that no rendering fails because the machine is busy.
"""

from __future__ import annotations

import sys
import time
from typing import Any, TypeVar

from jinja2.utils import Namespace

from minfer.errors import TemplateError
from minfer.text.messages import MAX_DEPTH

BASE_UNITS = 4_000_000
BASE_SECONDS = 1.0
UNITS_PER_INPUT = 64
SECONDS_PER_INPUT = 1e-6
"""For each unit of what the template is given: messages, tools, variables."""
MAX_INT_BITS = 4096

_ELEMENT_UNITS = 8
_MAX_VALUE_DEPTH = MAX_DEPTH + 36  # a template may wrap a few levels more around what it is given

T = TypeVar("T")


class Budget:
    """The allowance of one rendering, used from one thread."""

    def __init__(self, inputs: Any) -> None:
        # Lists and dicts, which can't be changed in the sandbox, are measured once each: object, size, depth. The
        # object is kept so that no other one gets its id.
        self._known: dict[int, tuple[Any, int, int]] = {}
        self._n_allowed = sys.maxsize
        n_units = self.size(inputs)
        self._n_left = self._n_allowed = BASE_UNITS + UNITS_PER_INPUT * n_units
        self._allowed_s = BASE_SECONDS + SECONDS_PER_INPUT * n_units
        self._deadline_s = time.thread_time() + self._allowed_s

    def spend(self, n_units: int) -> None:
        """
        Raises:
            TemplateError: it is more than is left, or the time is up.
        """
        self._n_left -= n_units
        if self._n_left < 0:
            raise TemplateError(
                f"the chat template makes too much: more than {self._n_allowed:,} bytes, all that it makes on the way "
                "included"
            )
        if time.thread_time() > self._deadline_s:
            raise TemplateError(f"the chat template takes too long: more than {self._allowed_s:.1f} s of computing")

    def charge(self, value: T) -> T:
        """Pays for a value that has just been made, and gives it back."""
        if isinstance(value, Namespace) or id(value) in self._known:
            self.spend(1)
        else:
            self.size(value)
            self.spend(1 + _own_units(value))
        return value

    def size(self, value: Any) -> int:
        """The units of a value when it is written out: what a container holds in two places counts twice.

        Raises:
            TemplateError: it is more than the whole allowance, it nests too deep, an integer in it is too large, or it
                is a namespace, which is the one thing that can change and so has no size.
        """
        return self._measure(value)[0]

    def text(self, value: Any) -> str:
        """What a template writes for a value: `str(value)`, paid for before it is made."""
        self.spend(1 + self.size(value))
        return str(value)

    def depth(self, value: Any) -> int:
        """How deep a value nests; 0 for what is no container."""
        return self._measure(value)[1]

    def _measure(self, value: Any) -> tuple[int, int]:
        if isinstance(value, str):
            return len(value), 0
        if isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise TemplateError(f"the chat template computes an integer of more than {MAX_INT_BITS} bits")
            return 1 + value.bit_length() // 3, 0  # about its digits
        if isinstance(value, Namespace):
            raise TemplateError("the chat template writes out a namespace, or puts it into a list: not supported")
        if not isinstance(value, (list, tuple, dict)):
            return 1, 0
        if id(value) not in self._known:
            self._known[id(value)] = (value, *self._measure_items(value))
        _, size, depth = self._known[id(value)]
        return size, depth

    def _measure_items(self, container: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> tuple[int, int]:
        size, depth = _own_units(container), 1
        items = (*container, *container.values()) if isinstance(container, dict) else container
        for item in items:
            item_size, item_depth = self._measure(item)
            size += item_size
            depth = max(depth, item_depth + 1)
        if depth > _MAX_VALUE_DEPTH:
            raise TemplateError("the chat template nests lists too deep")
        if size > self._n_allowed:
            raise TemplateError("the chat template makes a list that is too large to write out")
        return size, depth


def _own_units(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, tuple)):
        return _ELEMENT_UNITS * len(value)
    if isinstance(value, dict):
        return 2 * _ELEMENT_UNITS * len(value)
    return 0
