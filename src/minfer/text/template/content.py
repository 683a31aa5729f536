"""In which form a template reads the content of messages.

Most templates write `message.content` as it is: a string. Some loop over it, and take the text out of parts such as
`{"type": "text", "text": "Hi"}`; given a string, they loop over its characters and write nothing. The other way round,
a list of parts where a string is wanted fails, or is written out as Python shows lists. So each template is tried once
for each role, with a marker that nobody else would write.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from minfer.errors import MinferError, MinferWarning

MARKER: Final = "Zq7vX0kW3mTj9Lc2Rb"
"""Stands for a text in trial renderings. Of letters and digits, which no filter trims or escapes; case may change."""

THOUGHT_KEYS: Final = ("reasoning_content", "thinking", "reasoning")
"""Where templates look for the thoughts of a message. Callers write the first; gpt-oss's template, for one, reads the
second."""

_MERGING: Final = ("<start_of_turn>", "[INST]")
"""What the templates of Gemma and of Mistral's older models write. These families put the system prompt in front of the
first question, and templates of theirs that refuse one leave that to the caller."""

Messages = list[dict[str, Any]]
Render = Callable[[Messages], str]


class ContentForm(Enum):
    """What a template takes as the content of a message."""

    TEXT = "a string"
    PARTS = "a list of parts"


@dataclass
class Findings:
    """What has been found out about a template. Threads may find the same thing out twice."""

    forms: dict[str, ContentForm] = field(default_factory=dict)
    """by role, of those whose content the template writes"""
    takes_none: bool | None = None
    """whether a message with calls of tools and no content has the content `none`, and not an empty text"""
    thoughts_key: str | None = None
    """of `THOUGHT_KEYS` the one that the template reads; None before it was looked for"""
    kept: set[object] = field(default_factory=set)
    """kinds of texts that the template has been seen to write"""
    told: set[str] = field(default_factory=set)
    """warnings that have been given"""

    def warn(self, message: str) -> None:
        """Gives a warning, once for each template."""
        if message not in self.told:
            self.told.add(message)
            warnings.warn(message, MinferWarning, stacklevel=2)


def fit_messages(messages: Messages, findings: Findings, source: str, render: Render) -> Messages:
    """The messages in the form in which the template keeps their texts.

    Args:
        messages: plain ones (`plain_messages`); they stay as they are.
        findings: about this template.
        source: of the template.
        render: renders trial messages without the caller's variables.
    """
    for role in ("user", *dict.fromkeys(message["role"] for message in messages)):
        if role not in findings.forms and (form := _find_form(role, findings.forms, render)) is not None:
            findings.forms[role] = form
    if _merges_system(messages, findings, source):
        findings.warn(
            "the chat template takes no system message: it is put in front of the first question, as is usual for this "
            "family of models"
        )
        messages = _merged(messages)
    if any(_is_call_alone(message) for message in messages):
        if findings.takes_none is None:
            findings.takes_none = _takes_none(render)
        content = None if findings.takes_none else ""
        messages = [message | {"content": content} if _is_call_alone(message) else message for message in messages]
    if any(THOUGHT_KEYS[0] in message for message in messages):
        if findings.thoughts_key is None:
            findings.thoughts_key = _find_thoughts_key(render)
        messages = [_with_thoughts_at(findings.thoughts_key, message) for message in messages]
    return _in_forms(messages, findings.forms)


def _find_form(role: str, known: Mapping[str, ContentForm], render: Render) -> ContentForm | None:
    """The form in which a template writes the content of a role's messages; None if in neither."""
    for form in ContentForm:
        try:
            text = render(_in_forms(_trial(role), {**known, role: form}))
        except MinferError:
            continue
        if MARKER.lower() in text.lower() and not any(shown in text for shown in _WRITTEN_OUT):
            return form
    return None


_WRITTEN_OUT: Final = (repr({"text": MARKER})[1:-1], json.dumps({"text": MARKER})[1:-1])
"""How a list of parts looks where a template writes it without looking into it."""


def _is_call_alone(message: dict[str, Any]) -> bool:
    return bool(message.get("tool_calls")) and not message.get("content")


def _takes_none(render: Render) -> bool:
    """Whether a template knows that a content can be `none`. Some write "None" or "null" then, and others fail; some
    that know it write an empty answer beside the call where they are given an empty text."""
    question, call, answer = _trial("tool")
    for rest in ([answer], []):  # few have no place for the answer
        try:
            given_text = render([question, call, *rest])
        except MinferError:
            continue
        try:
            given_none = render([question, call | {"content": None}, *rest])
        except MinferError:
            return False
        return all(given_none.count(word) == given_text.count(word) for word in ("None", "null"))
    return False


def _find_thoughts_key(render: Render) -> str:
    question, call, answer = _trial("tool")
    for key in THOUGHT_KEYS:
        try:
            if MARKER.lower() in render([question, call | {key: MARKER}, answer | {"content": "?"}]).lower():
                return key
        except MinferError:
            continue
    return THOUGHT_KEYS[0]


def _with_thoughts_at(key: str, message: dict[str, Any]) -> dict[str, Any]:
    if THOUGHT_KEYS[0] not in message or key in message:
        return message
    return {name: value for name, value in message.items() if name != THOUGHT_KEYS[0]} | {key: message[THOUGHT_KEYS[0]]}


def _trial(role: str) -> Messages:
    """A conversation with a message of a role whose content is the marker."""
    tried, question = {"role": role, "content": MARKER}, {"role": "user", "content": "?"}
    match role:
        case "user":
            return [tried]
        case "system" | "developer":
            return [tried, question]
        case "assistant":
            return [question, tried, question]
        case "tool":
            call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
            asked = {"role": "assistant", "content": "", "tool_calls": [call]}
            return [question, asked, tried | {"tool_call_id": call["id"], "name": "f"}]
        case _:
            return [question, tried]


def _in_forms(messages: Messages, forms: Mapping[str, ContentForm]) -> Messages:
    return [
        message | {"content": [{"type": "text", "text": message["content"]}]}
        if forms.get(message["role"]) is ContentForm.PARTS and isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _merges_system(messages: Messages, findings: Findings, source: str) -> bool:
    return (
        messages[0]["role"] == "system"
        and "system" not in findings.forms
        and "user" in findings.forms
        and any(message["role"] == "user" for message in messages)
        and any(mark in source for mark in _MERGING)
    )


def _merged(messages: Messages) -> Messages:
    """The messages with the system message in front of the first one of the user."""
    system, *rest = messages
    index = next(index for index, message in enumerate(rest) if message["role"] == "user")
    texts = [text for text in (system["content"], rest[index]["content"]) if text]
    return [*rest[:index], rest[index] | {"content": "\n\n".join(texts)}, *rest[index + 1 :]]
