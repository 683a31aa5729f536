"""Chat messages as callers write them, checked and made plain for a template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from minfer.errors import ParameterError, UnsupportedError

MAX_DEPTH = 64
"""How deep lists and mappings in a message, a tool or a template's variable may nest."""


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as new dicts. A `content` given as a list of text parts becomes one string, joined by line breaks.

    Keys other than `role` and `content` (`tool_calls`, `name`, ...) stay as they are: what they mean is the template's
    business.

    Raises:
        ParameterError: no messages, or one without a role or content, or with a value that JSON could not hold.
        UnsupportedError: a content part that is not text.
    """
    if not is_list(messages) or not messages:
        raise ParameterError(f"messages must be a list of at least one message, not {_shown(messages)}")
    return [_plain_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence and no text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def plain_value(value: object, where: str, depth: int = 0) -> Any:
    """A copy of a value in Python's own types for JSON: None, bool, int, float, str, list, dict.

    Raises:
        ParameterError: a value of another kind, nesting deeper than `MAX_DEPTH`, or a string with a lone surrogate.
    """
    if depth > MAX_DEPTH:
        raise ParameterError(f"{where} nests deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return checked_text(value, where)
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ParameterError(f"{where} has the key {key!r}; keys must be strings")
            plain[checked_text(key, where)] = plain_value(item, f"{where}[{key!r}]", depth + 1)
        return plain
    if is_list(value):
        return [plain_value(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise ParameterError(f"{where} is {_shown(value)}; it must be text, a number, a bool, None, a list or a mapping")


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a plain value with every string in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [map_strings(item, change) for item in value]
    if isinstance(value, dict):
        return {key: map_strings(item, change) for key, item in value.items()}
    return value


def checked_text(text: str, where: str) -> str:
    """The text itself, if it can be written as UTF-8.

    Raises:
        ParameterError: not a string, or one with a lone surrogate, which is half of a character.
    """
    if not isinstance(text, str):
        raise ParameterError(f"{where} must be a string, not {_shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(
            f"{where} has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}; "
            "it is half of a character, and no UTF-8"
        ) from None
    return text


def _plain_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ParameterError(f"{where} must be a mapping with a role and content, not {_shown(message)}")
    plain: dict[str, Any] = plain_value(message, where)
    role = plain.get("role")
    if not isinstance(role, str) or not role:
        raise ParameterError(f"{where}['role'] must be a string such as 'user', not {_shown(role)}")
    content = plain.get("content")
    if isinstance(content, list):
        parts = [_part_text(part, f"{where}['content'][{index}]") for index, part in enumerate(content)]
        plain["content"] = "\n".join(parts)
    elif content is None:
        if not plain.get("tool_calls"):
            raise ParameterError(f"{where} has no content; only a message with tool calls may go without")
    elif not isinstance(content, str):
        raise ParameterError(f"{where}['content'] must be a string or a list of text parts, not {_shown(content)}")
    return plain


def _part_text(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ParameterError(f"{where} must be a part such as {{'type': 'text', 'text': ...}}, not {_shown(part)}")
    if kind != "text":
        raise UnsupportedError(f"a message part of type {kind!r} ({where})", ["text"])
    text = part.get("text")
    if not isinstance(text, str):
        raise ParameterError(f"{where}['text'] must be a string, not {_shown(text)}")
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:60] + '...'}"
