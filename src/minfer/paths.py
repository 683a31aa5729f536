"""Paths as people give them."""

from __future__ import annotations

import os
from pathlib import Path

from minfer.errors import ParameterError


def user_path(value: object, what: str) -> Path:
    """The path that a caller gives: text or a path object, with `~` for the home directory.

    Args:
        value: what was given.
        what: what it is the path of, for the error.

    Raises:
        ParameterError: it is neither text nor a path object, or is empty, or can't be a path.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(text, str):
        raise ParameterError(
            f"the path of {what} is {value!r}; it must be text or a pathlib.Path, not {type(value).__name__}"
        )
    if not text or "\0" in text:
        raise ParameterError(f"the path of {what} is {text!r}; it must not be empty, or have a NUL character in it")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ParameterError(f"the path of {what} is {text!r}, and there is no home directory for its ~") from None
