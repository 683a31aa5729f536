"""The kinds of tokens in a GGUF file's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    """Only ever parsed from text when that is asked for."""
    USER_DEFINED = 4
    """Always parsed from text, before everything else."""
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})
"""Left out of text that is made without special tokens, and not parsed from text unless that is asked for."""

BYTE_TOKENS: Mapping[str, int] = MappingProxyType({f"<0x{byte:02X}>": byte for byte in range(256)})
"""The text of a token of type BYTE -> the byte."""
