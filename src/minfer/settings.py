"""The only reader of the process environment: every `MINFER_*` variable, by name, with its meaning.

| variable | meaning |
|---|---|
| `MINFER_CACHE_DIR` | where models, compiled kernels and conversations are kept; default: the user's cache directory |
| `MINFER_BACKEND` | the backend to use where the caller names none |
| `MINFER_ISA` | the instruction set that the CPU backend uses, instead of the best there is |
| `MINFER_CACHE_TYPE` | the type of the KV cache where the caller names none: `f16`, `f32`, `q8_0`, or `k:f16,v:q8_0` |
| `MINFER_TRACE` | a file to write a trace of every node of every step to |
| `MINFER_DUMP_DIR` | a directory to write every layer's hidden state to |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minfer.errors import SettingsError, closest

_PREFIX = "MINFER_"
_KNOWN = frozenset(
    {"MINFER_CACHE_DIR", "MINFER_BACKEND", "MINFER_ISA", "MINFER_CACHE_TYPE", "MINFER_TRACE", "MINFER_DUMP_DIR"}
)


NO_CACHE_DIR = Path(os.devnull, "no-home-directory")
"""Where there is no home directory: a path that can never be made, and says why where it is shown."""


@dataclass(frozen=True)
class Settings:
    """What the environment says; `None` where it says nothing."""

    cache_dir: Path
    backend: str | None
    isa: str | None
    cache_type: str | None
    trace_path: Path | None
    dump_dir: Path | None


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment (the process's own by default).

    Raises:
        SettingsError: for a `MINFER_*` variable that minfer does not know, so that a misspelt one is noticed.
    """
    env = os.environ if environment is None else environment
    unknown = sorted(name for name in env if name.startswith(_PREFIX) and name not in _KNOWN)
    if unknown:
        named = ", ".join(f"{name}{_meant(name)}" for name in unknown)
        raise SettingsError(
            f"unknown environment variable{'s' if len(unknown) > 1 else ''} {named}; "
            f"minfer reads {', '.join(sorted(_KNOWN))}"
        )
    return Settings(
        cache_dir=_given_cache_dir(env) or _default_cache_dir(env),
        backend=env.get("MINFER_BACKEND") or None,
        isa=env.get("MINFER_ISA") or None,
        cache_type=env.get("MINFER_CACHE_TYPE") or None,
        trace_path=Path(env["MINFER_TRACE"]) if env.get("MINFER_TRACE") else None,
        dump_dir=Path(env["MINFER_DUMP_DIR"]) if env.get("MINFER_DUMP_DIR") else None,
    )


def _meant(name: str) -> str:
    # Without what all have in common, which would make any two of them alike.
    known = {each.removeprefix(_PREFIX): each for each in _KNOWN}
    likeliest = closest(name.removeprefix(_PREFIX), known)
    return f" (did you mean {known[likeliest]}?)" if likeliest is not None else ""


def _given_cache_dir(env: Mapping[str, str]) -> Path | None:
    # A service's configuration, which no shell reads, may have `~`.
    given = env.get("MINFER_CACHE_DIR")
    return Path(os.path.expanduser(given)) if given else None


def _default_cache_dir(env: Mapping[str, str]) -> Path:
    try:
        return _user_cache_dir(env) / "minfer"
    except RuntimeError:  # no HOME, and nobody of this number in the list of users, as in a container
        return NO_CACHE_DIR


def _user_cache_dir(env: Mapping[str, str]) -> Path:
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
