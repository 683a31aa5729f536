"""The library's messages in the words of the command line: `n_ctx` is written `--n-ctx` there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from minfer.cli.parameters import PARAMETERS

_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        **{name: parameter.flag for name, parameter in PARAMETERS.items()},
        "max_tokens": "--max-tokens",
        "stop": "--stop",
        "n_ctx": "--n-ctx",
        "threads": "--threads",
        "cache_type": "--cache-type",
        "drain_s": "--drain",
    }
)
# Where a name begins what is said of it; elsewhere it may be a stage of the sampler, or a plain word.
_SUBJECT = re.compile(
    rf"^({'|'.join(_FLAGS)})(?=\[| (?:is|must|has|holds|names) )|(?<=[;,] set )({'|'.join(_FLAGS)})\b"
)
_CONTEXT = re.compile(r"(?<![\w./\\-])n_ctx(?![\w./\\-])")


def as_options(message: str) -> str:
    """A message about parameters, with the options by which they are given."""
    return _SUBJECT.sub(lambda match: _FLAGS[match[0]], with_context_option(message))


def with_context_option(message: str) -> str:
    """A message with the option that sets the size of the context, where it speaks of that."""
    return _CONTEXT.sub("--n-ctx", message)
