"""The exceptions that minfer raises.

    MinferError
    ├── ParameterError        an argument or option is out of its range, or of the wrong kind (also a ValueError)
    ├── SettingsError         a MINFER_* environment variable can't be understood
    ├── ModelNotFoundError    no model by that name; lists what was tried
    ├── DownloadError         a model could not be fetched, or arrived damaged
    ├── GGUFError             the file is not valid GGUF; names the field and the byte offset
    ├── ModelError            valid GGUF, but the model in it does not fit together
    ├── UnsupportedError      understood, and not supported; names the thing and what is supported
    ├── TokenizerError        the tokenizer in the file is damaged or incomplete, or an id is out of range
    ├── TemplateError         the chat template failed, or took too long
    ├── ContextError          more positions than n_ctx; names both numbers
    ├── SessionFileError      a saved session is damaged, or of another version or model; or it can't be written
    │   └── ForeignFileError  a file that is not minfer's stands where one is to be written
    ├── QueueFullError        a server has too many requests waiting
    ├── EngineClosedError     a server's engine was closed before a request was over
    └── GraphError            a graph breaks an invariant; a bug in a model definition or in a pass

Every message says what is wrong, with the value met, and where it helps what to do. All of them can be pickled and
copied, with everything that they hold, so that they get from one process to another.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class MinferError(Exception):
    """Base of every exception that minfer raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's own way calls the class with the message alone, which most of these don't take.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[MinferError], arguments: tuple[object, ...], state: dict[str, object]) -> MinferError:
    """An exception as it was when it was pickled."""
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


class ParameterError(MinferError, ValueError):
    """An argument is out of its range or of the wrong kind."""


class SettingsError(MinferError):
    """A `MINFER_*` environment variable can't be understood."""


class ModelNotFoundError(MinferError):
    """No model goes by the name given. `tried` lists where it was looked for."""

    def __init__(self, name: str, tried: Iterable[str], hint: str = "") -> None:
        self.name = name
        self.tried = tuple(tried)
        lines = [f"no model {name!r}; tried:", *(f"  - {line}" for line in self.tried)]
        if hint:
            lines.append(hint)
        super().__init__("\n".join(lines))


class DownloadError(MinferError):
    """A model could not be fetched, or what arrived is not what was expected."""


class GGUFError(MinferError):
    """The bytes are not a valid GGUF file. `field` names the part and `offset` the byte where it stands."""

    def __init__(self, message: str, *, field: str, offset: int | None = None, path: str | None = None) -> None:
        self.field = field
        self.offset = offset
        self.path = path
        where = f" at byte {offset}" if offset is not None else ""
        prefix = f"{path}: " if path else ""
        super().__init__(f"{prefix}{field}{where}: {message}")


class ModelError(MinferError):
    """The file is valid GGUF, but the model in it is incomplete or contradicts itself."""


class UnsupportedError(MinferError):
    """Something is understood and not supported. `what` names it, `supported` lists the alternatives."""

    def __init__(self, what: str, supported: Iterable[str] = (), hint: str = "") -> None:
        self.what = what
        self.supported = tuple(supported)
        message = f"{what} is not supported"
        if self.supported:
            message += f"; supported: {', '.join(self.supported)}"
        if hint:
            message += f". {hint}"
        super().__init__(message)


class TokenizerError(MinferError):
    """The tokenizer in the file is damaged or incomplete, or a token id is not in its vocabulary."""


class TemplateError(MinferError):
    """The chat template is missing, does not compile, raised an error, or went over its limits."""


class ContextError(MinferError):
    """More positions are asked for than the context has. `n_positions` and `n_ctx` hold both numbers."""

    def __init__(self, message: str, *, n_positions: int, n_ctx: int) -> None:
        self.n_positions = n_positions
        self.n_ctx = n_ctx
        super().__init__(message)


class SessionFileError(MinferError):
    """A saved session can't be read or written. `path` is the file, `reason` says why."""

    def __init__(self, path: object, reason: str) -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class ForeignFileError(SessionFileError):
    """A file that minfer did not write stands where a session is to be saved. `overwrite=True` replaces it."""

    def __init__(self, path: object) -> None:
        super().__init__(path, "a file that is not a saved session stands there, and is left alone")


class QueueFullError(MinferError):
    """More requests wait than the queue holds; another try after `retry_after_s` may succeed."""

    def __init__(self, n_queued: int, retry_after_s: float) -> None:
        self.n_queued = n_queued
        self.retry_after_s = retry_after_s
        super().__init__(f"{n_queued} requests are waiting already, which is all that the queue holds; try again later")


class EngineClosedError(MinferError):
    """The engine was closed before the request was over."""


class GraphError(MinferError):
    """A graph breaks one of its invariants: a bug in a model definition or in a pass."""


class MinferWarning(UserWarning):
    """Something works, but not as the user might expect."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """For a message about a name that is none of those there are: the likeliest of them as ` (did you mean X?)`, or
    nothing where none is like it."""
    likeliest = closest(name, names)
    return "" if likeliest is None else f" (did you mean {likeliest}?)"


def closest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is most like `name`, if any is like it."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)
