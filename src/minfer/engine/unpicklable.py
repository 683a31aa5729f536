"""What can't leave its process, and says so."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from minfer.errors import UnsupportedError


class Unpicklable:
    """A base of classes that hold memory or threads: pickling or copying them is refused with what to do instead."""

    _instead: ClassVar[str] = "Load the model in each process with minfer.load, and send texts and results"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(f"pickling or copying a {type(self).__name__}", hint=self._instead)
