"""Going on with the last message: a prompt that ends where its text ends.

Templates close each message, and some put something in front of an answer: an empty block of thoughts, a space. So the
message is rendered like any other, with a marker behind its text, and the prompt is cut there. Where the text itself
begins with thoughts (`<think>`), it is what a model writes by itself, and stands behind the start of an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minfer.errors import ParameterError, TemplateError
from minfer.text.template.content import MARKER, Findings, Messages

OPEN_TAG: Final = "<think>"
CLOSE_TAG: Final = "</think>"
ANSWERING_ROLES: Final = frozenset(("assistant", "model"))


def is_continued(message: dict[str, Any]) -> bool:
    """Whether a message of the assistant has a text to go on with; else a new answer begins."""
    return any(isinstance(message.get(key), str) and message[key].strip() for key in ("content", "reasoning_content"))


def continue_last(messages: Messages, findings: Findings, render: Callable[[Messages, bool], str]) -> str:
    """The prompt whose end is the text of the last message, its content or else its thoughts.

    Args:
        messages: plain ones (`plain_messages`).
        findings: about the template.
        render: renders messages, and behind them the start of an answer if the flag is set.

    Raises:
        ParameterError: the last message is not the assistant's, or calls tools.
        TemplateError: the template fails, or leaves the text out.

    Warns:
        MinferWarning: the thoughts before the text are left out.
    """
    *before, last = messages
    if last["role"] not in ANSWERING_ROLES or last.get("tool_calls"):
        what = "calls tools" if last.get("tool_calls") else f"has the role {last['role']!r}"
        raise ParameterError(f"only an assistant's message can be continued, and the last one {what}")
    content: str = last.get("content") or ""
    if not is_continued(last) or content.lstrip().startswith(OPEN_TAG):
        start = render(before, True)
        if start.rstrip().endswith(OPEN_TAG):
            content = content.lstrip().removeprefix(OPEN_TAG).lstrip("\n")
        return start + content
    key = "content" if content.strip() else "reasoning_content"
    prompt = render([*before, last | {key: last[key] + MARKER}], False)
    end = prompt.lower().rfind(MARKER.lower())
    if end < 0:
        raise TemplateError(f"the chat template leaves out the {key} of the last message, so it can't be continued")
    thoughts = last.get("reasoning_content")
    if isinstance(thoughts, str) and thoughts.strip() not in prompt:
        findings.warn("the chat template leaves out the thoughts (reasoning_content) of the message that is continued")
    return prompt[:end]
