"""Tool calls in what a model writes, told apart from its text.

Two forms are read. *Tagged*, of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere
in the answer. *Bare JSON*, of Llama 3 and Mistral: the whole answer is one or several objects with `name` and
`parameters` or `arguments`. Small models that were taught tags forget them, so bare JSON is read there too, as are the
code fence and the doubled braces that Qwen2.5-Coder puts around it. What can't be read as a call stays text.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from minfer.errors import UnsupportedError
from minfer.serve.marks import n_held

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_FENCE: Final = "```"


class ToolFormat(Enum):
    """How a family of models writes calls."""

    TAGGED = auto()
    BARE_JSON = auto()


def tool_format(template: str) -> ToolFormat:
    """The form that a chat template teaches its model.

    Raises:
        UnsupportedError: another form than those read here.
    """
    if "<function=" not in template and "[ARGS]" not in template:
        if OPEN in template:
            return ToolFormat.TAGGED
        if "[TOOL_CALLS]" in template or '"parameters"' in template:
            return ToolFormat.BARE_JSON
    raise UnsupportedError(
        "the form in which the model's chat template has tools called",
        ['<tool_call>{"name": ..., "arguments": ...}</tool_call>', 'JSON with "name" and "parameters" or "arguments"'],
    )


@dataclass(frozen=True)
class ParsedCall:
    """A call of a tool; `arguments` is a JSON object as text."""

    name: str
    arguments: str


Piece = str | ParsedCall


class CallParser(Protocol):
    """Takes the text of an answer piece by piece."""

    def push(self, text: str) -> list[Piece]:
        """The text and calls that this piece completes."""
        ...

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        """What is left at the end. `is_cut`: the answer was ended before the model ended it."""
        ...


def call_parser(form: ToolFormat | None, names: Collection[str]) -> CallParser:
    """A parser for one answer; None reads no calls. `names` are the tools that there are."""
    match form:
        case ToolFormat.TAGGED:
            return BareCalls(names, TaggedCalls())
        case ToolFormat.BARE_JSON:
            return BareCalls(names, NoCalls())
        case None:
            return NoCalls()


class NoCalls:
    """Everything is text."""

    def push(self, text: str) -> list[Piece]:
        return [text] if text else []

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        return []


class TaggedCalls:
    """Calls between tags. White space around them is not part of the text."""

    def __init__(self) -> None:
        self._held = ""
        self._in_call = False
        self._after_call = False

    def push(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while True:
            mark = CLOSE if self._in_call else OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            if self._in_call:
                call = _read_call(before)
                pieces += self._text(f"{OPEN}{before}{CLOSE}") if call is None else [call]
                self._after_call = call is not None
            else:
                pieces += self._text(before.rstrip())
            self._held, self._in_call = after, not self._in_call
        if not self._in_call:
            shown = self._held[: len(self._held) - n_held(self._held, OPEN)].rstrip()
            self._held = self._held[len(shown) :]
            pieces += self._text(shown)
        return pieces

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        held, self._held = self._held, ""
        if not self._in_call:
            return self._text(held if held.strip() or not self._after_call else "")
        call = _read_call(held)  # some models end their answer without the closing tag
        return [call] if call is not None else self._text(OPEN + held)

    def _text(self, text: str) -> list[Piece]:
        if self._after_call:
            text = text.lstrip()
        if not text:
            return []
        self._after_call = False
        return [text]


class BareCalls:
    """The answer is calls of tools that exist and nothing else, or it is left to another parser."""

    def __init__(self, names: Collection[str], otherwise: CallParser) -> None:
        self._names = frozenset(names)
        self._otherwise = otherwise
        self._held: str | None = ""
        """the answer so far; None once it has turned out to be something else"""

    def push(self, text: str) -> list[Piece]:
        if self._held is None:
            return self._otherwise.push(text)
        self._held += text
        if _may_be_bare(self._held.lstrip()):
            return []
        held, self._held = self._held, None
        return self._otherwise.push(held)

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        if self._held is None:
            return self._otherwise.finish(is_cut=is_cut)
        values, rest = _bare_values(self._held), ""
        if values is None and is_cut:
            values, rest = _values_before_cut(self._held)
        calls = [_as_call(value) for value in values or ()]
        known = [call for call in calls if call is not None and call.name in self._names]
        if known and len(known) == len(calls):
            return [*known, rest] if rest else list(known)
        return [*self._otherwise.push(self._held), *self._otherwise.finish(is_cut=is_cut)]


def _may_be_bare(start: str) -> bool:
    """Whether an answer that begins so may be calls and nothing else."""
    if start.startswith(_FENCE):
        language, line_end, code = start.removeprefix(_FENCE).partition("\n")
        return "json".startswith(language.strip()) and (not line_end or _may_be_bare(code.lstrip()))
    return not start or start.startswith(("{", "[")) or _FENCE.startswith(start)


def _bare_values(text: str) -> list[Any] | None:
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = text.removesuffix(_FENCE).partition("\n")[2].strip()
    values = _read_values(text)
    if values is None and text.startswith("{{") and text.endswith("}}"):
        return _read_values(text[1:-1])
    return values


def _values_before_cut(text: str) -> tuple[list[Any], str]:
    """The values that are complete in a text that was cut, and the beginning of the one that is not.

    There are none where something else than a further value follows.
    """
    rest = text.strip()
    if rest.startswith(_FENCE):
        rest = rest.partition("\n")[2].lstrip()
    values: list[Any] = []
    is_list = rest.startswith("[")
    if is_list:
        rest = rest[1:].lstrip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        values.append(value)
        rest = rest[end:].lstrip(" \t\r\n;,")
    return (values, rest) if not rest or rest.startswith("{") else ([], "")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


def _read_call(text: str) -> ParsedCall | None:
    values = _read_values(text)
    return _as_call(values[0]) if values is not None and len(values) == 1 else None


def _read_values(text: str) -> list[Any] | None:
    """The JSON values of a text, of which a list counts as its items; None where there is something else in it."""
    values: list[Any] = []
    rest = text.strip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        values += value if isinstance(value, list) else [value]
        rest = rest[end:].lstrip(" \t\r\n;")
    return values


def _as_call(value: Any) -> ParsedCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # written as text within the JSON
        inner = _read_values(arguments)
        arguments = inner[0] if inner is not None and len(inner) == 1 else None
    if not isinstance(arguments, dict):
        return None
    return ParsedCall(value["name"], json.dumps(arguments, ensure_ascii=False))
