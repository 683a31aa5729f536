"""From the messages of a request to the tokens of a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from minfer.engine.thinking import continues_thinking, opens_thinking
from minfer.errors import TemplateError
from minfer.serve.errors import ApiError, invalid
from minfer.serve.schema_chat import AssistantMessage, Content, InstructionMessage, Message, TemplateFields, ToolMessage
from minfer.serve.tool_calls import CLOSE, OPEN, ToolFormat, tool_format
from minfer.text import Tokenizer, is_continued
from minfer.text.messages import plain_messages as plain_text_messages

_N_TAIL_TOKENS: Final = 16
_OWN_VARIABLES: Final = frozenset({"self", "messages", "tools", "add_generation_prompt", "continue_final_message"})
_PROBE: Final = ({"role": "user", "content": "?"},)


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model reads it."""

    tokens: tuple[int, ...]
    starts_in_thought: bool
    """whether the template, or the message that is continued, has opened the thoughts of the answer"""
    tool_format: ToolFormat | None
    tool_names: frozenset[str]
    continues_text: bool = False
    """whether the answer goes on with the text of the last message"""
    open_call: str = ""
    """a call of a tool that this text begins and does not end"""


def chat_prompt(
    tokenizer: Tokenizer, messages: Sequence[Message], fields: TemplateFields, *, with_tools: bool
) -> ChatPrompt:
    """Renders and tokenises a conversation.

    Raises:
        ApiError: variables that are not the client's to set, tools where the template knows none, arguments of an
            earlier call that are no JSON object, or a last message that can't be continued.
        MinferError: the template fails.
    """
    tools = plain_tools(fields) if with_tools else None
    form = tool_format(check_tools(tokenizer, tools)) if tools else None
    variables = template_variables(fields)
    plain, continues = plain_messages(tokenizer, messages), continues_last(messages, fields)
    starts = fields.add_generation_prompt is not False
    ids = tuple(tokenizer.encode_chat(plain, tools, starts, continues, **variables))
    names = frozenset(tool["function"]["name"] for tool in tools or ())
    if continues and is_continued(last := plain_text_messages(plain[-1:])[0]):
        content, thoughts = last["content"], last.get("reasoning_content", "")
        call = content[content.rfind(OPEN) :] if form is ToolFormat.TAGGED and _has_open_call(content) else ""
        return ChatPrompt(ids, continues_thinking(content, thoughts), form, names, True, call)
    return ChatPrompt(ids, opens_thinking(tokenizer.detokenize(ids[-_N_TAIL_TOKENS:])), form, names)


def continues_last(messages: Sequence[Message], fields: TemplateFields) -> bool:
    """Whether the last message is to be continued: one of the assistant is, as in llama.cpp, unless the client says
    otherwise in the way of vLLM.

    Raises:
        ApiError: it is to be, and can't.
    """
    last = messages[-1]
    can = isinstance(last, AssistantMessage) and not last.tool_calls
    if not fields.continue_final_message:
        return can and fields.continue_final_message is None and fields.add_generation_prompt is not False
    if fields.add_generation_prompt:
        message = "continue_final_message: does not go with add_generation_prompt, which starts another answer"
        raise invalid(message, "continue_final_message", "invalid_value")
    if not can:
        message = "continue_final_message: the last message must be the assistant's, and without tool calls"
        raise invalid(message, "continue_final_message", "invalid_value")
    return True


def _has_open_call(text: str) -> bool:
    return text.rfind(OPEN) > text.rfind(CLOSE)


def plain_tools(fields: TemplateFields) -> list[dict[str, Any]] | None:
    """The tools as templates take them."""
    if not fields.tools:
        return None
    return [tool.model_dump(exclude_none=True) for tool in fields.tools]


def template_variables(fields: TemplateFields) -> dict[str, Any]:
    """The template's variables that the client sets.

    Raises:
        ApiError: one that is not the client's to set.
    """
    variables = fields.chat_template_kwargs or {}
    for name in variables:
        if name in _OWN_VARIABLES or name.endswith("_token"):
            raise invalid(f"chat_template_kwargs: {name!r} can't be set", "chat_template_kwargs", "invalid_value")
    return variables


def plain_messages(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as templates take them.

    Few templates know the role `developer`; for the others it is `system`. The arguments of calls are objects.
    """
    template = tokenizer.chat_template
    knows_developer = template is not None and "developer" in template.source
    plain = []
    for index, message in enumerate(messages):
        fields: dict[str, Any] = {"role": message.role}
        if message.content is not None or isinstance(message, AssistantMessage):
            fields["content"] = _plain_content(message.content)
        if message.name is not None:
            fields["name"] = message.name
        match message:
            case InstructionMessage(role="developer") if not knows_developer:
                fields["role"] = "system"
            case AssistantMessage():
                if message.reasoning_content is not None:
                    fields["reasoning_content"] = message.reasoning_content
                if message.tool_calls:
                    fields["tool_calls"] = [
                        {
                            "id": call.id,
                            "type": call.type,
                            "function": {
                                "name": call.function.name,
                                "arguments": _arguments(call.function.arguments, f"messages.{index}.tool_calls.{i}"),
                            },
                        }
                        for i, call in enumerate(message.tool_calls)
                    ]
                elif not message.content and message.content != "":
                    raise invalid(
                        f"messages.{index}.content: only a message with tool calls may go without",
                        f"messages.{index}.content",
                        "missing_required_parameter",
                    )
            case ToolMessage(tool_call_id=str()):
                fields["tool_call_id"] = message.tool_call_id
        plain.append(fields)
    return plain


def _plain_content(content: Content | None) -> Any:
    if not content:
        return ""
    return content if isinstance(content, str) else [{"type": part.type, "text": part.text} for part in content]


def _arguments(text: str | None, where: str) -> dict[str, Any]:
    """The arguments of an earlier call; a call without any is written in several ways."""
    if text is None or text.strip() in ("", "null"):
        return {}
    param = f"{where}.function.arguments"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise _no_object(param) from None
    if not isinstance(value, dict):
        raise _no_object(param)
    return value


def _no_object(param: str) -> ApiError:
    return invalid(f"{param}: must be a JSON object, as text", param, "invalid_value")


def check_tools(tokenizer: Tokenizer, tools: list[dict[str, Any]]) -> str:
    """The source of the template that writes tools into a prompt.

    Raises:
        ApiError: the model's template leaves tools out.
        TemplateError: there is none.
    """
    template = tokenizer.chat_templates.get("tool_use") or tokenizer.chat_template
    if template is None:
        raise TemplateError("the model has no chat template, so it can't take tools")
    try:
        without = template.render(_PROBE)
    except TemplateError:  # some templates are for tools alone
        return template.source
    if without == template.render(_PROBE, tools):
        raise invalid("tools: the model's chat template has no place for them", "tools", "unsupported")
    return template.source
