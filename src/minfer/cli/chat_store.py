"""Where conversations and the input history are kept: below the cache directory, for their owner alone."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from minfer.errors import ParameterError, SessionFileError

_SUFFIX = ".chat"
_N_AUTOMATIC = 20
_NAME = re.compile(r"[^/\\\0.][^/\\\0]*")


class ChatStore:
    """The files of `minfer chat`. Directories are made when something is first put there."""

    def __init__(self, cache_dir: Path, fingerprint: str) -> None:
        """
        Args:
            fingerprint: of the model. Conversations that were saved automatically are told apart by it.
        """
        self._directory = cache_dir / "chats"
        self._automatic = self._directory / "auto" / fingerprint
        self.history = cache_dir / "chat-history"

    def target(self, name: str) -> Path:
        """The file to save to: a path where it has a directory or an ending, else a name in the store; by default the
        time.

        Raises:
            SessionFileError: the store's directory can't be made.
        """
        if _is_path(name):
            return Path(name).expanduser()
        _make_private(self._directory)
        return self._directory / f"{_checked(name or _now())}{_SUFFIX}"

    def source(self, name: str) -> Path:
        """The file to load: a path, or a name in the store.

        Raises:
            ParameterError: no name, or none that is there; lists those that are.
        """
        path = Path(name).expanduser()
        stored = self._directory / f"{name}{_SUFFIX}"
        if name and (path.is_file() or _is_path(name)):
            return path
        if name and stored.is_file():
            return stored
        names = sorted(file.stem for file in self._directory.glob(f"*{_SUFFIX}"))
        there = f"saved are {', '.join(names)}" if names else "none have been saved yet"
        wrong = f"there is no saved conversation {name!r}" if name else "which conversation?"
        raise ParameterError(f"{wrong}; {there}")

    def new_automatic(self) -> Path:
        """A file for a conversation that is saved as it goes on; old ones beyond a number are deleted.

        Raises:
            SessionFileError: the directory can't be made.
        """
        _make_private(self._automatic)
        for path in self._by_age()[: -(_N_AUTOMATIC - 1)]:
            with suppress(OSError):  # then they stay; whether a new one can be written is what matters
                path.unlink(missing_ok=True)
        return self._automatic / f"{_now()}-{os.getpid()}{_SUFFIX}"

    def latest(self) -> Path | None:
        """The conversation with this model that was saved last."""
        return next(reversed(self._by_age()), None)

    def prepare_history(self) -> Path:
        """The history's file, made readable for its owner alone.

        Raises:
            OSError: it can't be made.
        """
        self.history.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.history, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        self.history.chmod(0o600)
        return self.history

    def _by_age(self) -> list[Path]:
        ages = []
        for path in self._automatic.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # another process drops old ones too
                ages.append((path.stat().st_mtime_ns, path.name, path))
        return [path for _, _, path in sorted(ages)]


def _is_path(name: str) -> bool:
    return bool(Path(name).suffix or os.path.dirname(name) or name.startswith("~"))


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ParameterError(f"{name!r} is no name for a conversation; give a name such as holiday, or a path")
    return name


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d-%H%M%S")


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise SessionFileError(directory, f"it can't be made: {why}; MINFER_CACHE_DIR names another") from error
