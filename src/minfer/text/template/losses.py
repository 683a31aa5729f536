"""That a template loses none of what was said.

A template may have no place for a role, for a system message that is not the first, for what was said beside a tool
call. Then the model would answer something else than was asked, and nobody would know. So it is an error, but for two
things that many templates leave out and models do without; those give a warning.

A long text that stands in the prompt is there. A short one may stand there by chance, and one that is not found may
have been trimmed, cut or escaped: for those, the conversation is rendered once more with markers in their places. A
kind of text (a role, and where it stands) that was found so is not looked for again if it is short.

Thoughts (`reasoning_content`) are given back to a model only while it works on an answer, between its calls of tools:
those of earlier answers are left out by the templates of all models that think, as these were trained. Only the former
are looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from minfer.errors import MinferError, TemplateError
from minfer.text.template.content import MARKER, THOUGHT_KEYS, Findings, Messages, Render

_N_LONG: Final = 24
"""Characters of a text that stands nowhere by chance."""

_CONTENT, _CALLS = "content", "tool_calls"


@dataclass(frozen=True)
class _Said:
    """A text in the messages."""

    index: int
    key: str
    text: str
    """empty for calls, which are looked for with a marker alone"""
    kind: object


def check_nothing_lost(messages: Messages, prompt: str, findings: Findings, render: Render) -> None:
    """Makes sure that all that was said in messages is in the prompt.

    Args:
        messages: as the template got them.
        prompt: what it made of them.
        findings: about this template.
        render: renders other messages in the same way.

    Raises:
        TemplateError: something is not there; it says what.

    Warns:
        MinferWarning: what was said beside a tool call, or thought before one, is not there.
    """
    position, doubted = 0, []
    for said in _all_said(messages):
        if len(said.text) < _N_LONG:
            if said.kind not in findings.kept:
                doubted.append(said)
        elif (found := prompt.find(said.text, position)) >= 0:
            position = found + len(said.text)
        else:
            doubted.append(said)
    if not doubted:
        return
    try:
        trial = render(_marked(messages, doubted)).lower()
    except MinferError:  # no proof of a loss: the messages themselves were rendered
        return
    for said in doubted:
        if _mark(said).lower() in trial:
            findings.kept.add(said.kind)
        else:
            _report(said, messages[said.index], findings)


def _all_said(messages: Messages) -> Iterator[_Said]:
    last = len(messages) - 1
    last_question = max((index for index, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for index, message in enumerate(messages):
        role, calls = message["role"], bool(message.get(_CALLS))
        place = (role, messages[index - 1]["role"] if index else None, index == last, calls)
        text = _text(message.get(_CONTENT)).strip()
        for key in THOUGHT_KEYS if last_question < index < last else ():
            thoughts = message.get(key)
            if isinstance(thoughts, str) and thoughts.strip():
                yield _Said(index, key, thoughts.strip(), (*place, key))
        if text:
            yield _Said(index, _CONTENT, text, (*place, _CONTENT))
        if calls:
            yield _Said(index, _CALLS, "", (*place, _CALLS))


def _text(content: Any) -> str:
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _mark(said: _Said) -> str:
    return f"{MARKER}{said.index}{said.key.replace('_', '')}x"


def _marked(messages: Messages, doubted: list[_Said]) -> Messages:
    marked = list(messages)
    for said in doubted:
        message, mark = marked[said.index], _mark(said)
        value: Any = mark
        if said.key == _CALLS:
            value = [_marked_call(call, mark) for call in message[_CALLS]]
        elif said.key == _CONTENT and isinstance(message[_CONTENT], list):
            value = [{"type": "text", "text": mark}]
        marked[said.index] = message | {said.key: value}
    return marked


def _marked_call(call: Any, mark: str) -> Any:
    """A call with the mark in all of its arguments that are texts."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = {key: mark if isinstance(value, str) else value for key, value in arguments.items()} or {"x": mark}
        if mark not in arguments.values():
            arguments["x"] = mark
    else:
        arguments = mark
    changed = function | {"arguments": arguments}
    return call | {"function": changed} if "function" in call else changed


def _report(said: _Said, message: dict[str, Any], findings: Findings) -> None:
    role = message["role"]
    if said.key in THOUGHT_KEYS:
        findings.warn("the chat template leaves out what the model thought before it called a tool (reasoning_content)")
    elif said.key == _CONTENT and message.get(_CALLS):
        findings.warn(f"the chat template leaves out the content of a message of role {role!r} that has tool calls")
    else:
        what = "the tool calls" if said.key == _CALLS else "the text"
        raise TemplateError(
            f"the chat template leaves out {what} of messages[{said.index}], whose role is {role!r}: "
            "leave the message out, or use another template"
        )
