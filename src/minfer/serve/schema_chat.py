"""/v1/chat/completions: its request and its answers."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from minfer.engine.answer import UNLIMITED
from minfer.serve.schema_common import (
    MAX_TOKENS,
    GenerationFields,
    Label,
    PromptProgressReport,
    SamplingReport,
    Text,
    Timings,
    Unsupported,
    Usage,
    is_none,
)
from minfer.serve.schema_sampling import OnlyFalse, StrictModel

MAX_MESSAGES: Final = 4096
MAX_TOOLS: Final = 128
MAX_TOP_LOGPROBS: Final = 20
_CACHE_HINT: Final = "Prompts are kept without being told to; taken, and without effect."


class TextPart(StrictModel):
    """A part of a message. Only text is supported."""

    type: Literal["text"]
    text: Text
    cache_control: dict[str, Any] | None = Field(None, description=_CACHE_HINT)
    prompt_cache_breakpoint: dict[str, Any] | None = Field(None, description=_CACHE_HINT)


Content = Text | Annotated[list[TextPart], Field(min_length=1, max_length=1024)]
AnswerContent = Text | Annotated[list[TextPart], Field(max_length=1024)]


class InstructionMessage(StrictModel):
    """What the model is to be; `developer` is the newer name of `system`."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = Field(None, max_length=256)


class UserMessage(StrictModel):
    """What the user said."""

    role: Literal["user"]
    content: Content
    name: str | None = Field(None, max_length=256)


class FunctionCall(StrictModel):
    """A call that the model made earlier."""

    name: str = Field(max_length=256)
    arguments: Text | None = Field(description="A JSON object, as text; empty or null is one without entries.")
    parsed_arguments: Any = Field(None, description="What the official client made of `arguments`; without effect.")


class ToolCall(StrictModel):
    """A call of a tool, with the id that its answer names."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = Field(None, ge=0)


class AssistantMessage(StrictModel):
    """What the model said earlier, with all that the official client hands out as an answer."""

    role: Literal["assistant"]
    content: AnswerContent | None = None
    reasoning_content: Text | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=MAX_TOOLS)
    name: str | None = Field(None, max_length=256)
    refusal: Literal[""] | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    parsed: Any = Field(None, description="What the official client made of `content`; without effect.")


class ToolMessage(StrictModel):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str | None = Field(None, max_length=256)
    name: str | None = Field(None, max_length=256)


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]


class FunctionDefinition(StrictModel):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema.")
    strict: OnlyFalse | None = Field(None, description="Arguments can't be made to follow the schema.")


class Tool(StrictModel):
    """Something that the model may call."""

    type: Literal["function"]
    function: FunctionDefinition


class ResponseFormat(StrictModel):
    """The form of the answer: free text."""

    type: Literal["text"]


class TemplateFields(StrictModel):
    """What the chat template is given besides the messages."""

    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, max_length=64, description="Variables of the template, such as enable_thinking."
    )
    continue_final_message: bool | None = Field(
        None,
        description="Whether a last message of the assistant is continued, or else a new answer follows it; by default "
        "it is, unless it calls tools. What comes back is what is new.",
    )
    add_generation_prompt: bool | None = Field(
        None, description="Whether the prompt ends with the start of an answer; by default it does."
    )


class ChatRequest(GenerationFields, TemplateFields):
    """A conversation to be continued."""

    messages: Messages
    max_completion_tokens: int | None = Field(
        None, ge=UNLIMITED, le=MAX_TOKENS, description="The newer name of max_tokens."
    )
    max_tokens: int | None = Field(
        None, ge=UNLIMITED, le=MAX_TOKENS, description="At least 1; -1, like the default, is as many as fit."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = Field(None, description="false ends the answer after its first call.")
    response_format: ResponseFormat | None = None
    reasoning_format: Literal["auto", "none"] | None = Field(
        None, description="auto tells what stands in <think> as reasoning_content; none leaves it in the text."
    )
    modalities: list[Literal["text"]] | None = Field(None, max_length=1)
    metadata: dict[str, str] | None = Field(None, max_length=16, description="Labels of the client's own.")
    store: bool | None = Field(None, description="Nothing is stored; without effect on the answer.")
    service_tier: Label | None = None
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="A hint; without effect.")
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    prompt_cache_options: dict[str, Any] | None = Field(None, description=_CACHE_HINT)
    safety_identifier: Label | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    reasoning_effort: Unsupported = None
    web_search_options: Unsupported = None


class TopLogprob(BaseModel):
    """A token that could have stood there."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    """The tokens of the answer, thoughts and calls among them."""

    content: list[ContentLogprob]


class CalledFunction(BaseModel):
    """The function that the model calls."""

    name: str
    arguments: str


class MadeCall(BaseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class MadeCallDelta(MadeCall):
    """A call in a stream; it comes whole."""

    index: int


class AnswerMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = Field(default=None, exclude_if=is_none)
    tool_calls: list[MadeCall] | None = Field(default=None, exclude_if=is_none)


FinishReasonName = Literal["stop", "length", "tool_calls"]


class ChatChoice(BaseModel):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = Field(default=None, exclude_if=is_none)
    finish_reason: FinishReasonName


class ChatResponse(BaseModel):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    sampling: SamplingReport


class AnswerDelta(BaseModel):
    """What is new in an answer."""

    role: Literal["assistant"] | None = Field(default=None, exclude_if=is_none)
    content: str | None = Field(default=None, exclude_if=is_none)
    reasoning_content: str | None = Field(default=None, exclude_if=is_none)
    tool_calls: list[MadeCallDelta] | None = Field(default=None, exclude_if=is_none)


class ChatChunkChoice(BaseModel):
    """What is new in one of the answers."""

    index: int
    delta: AnswerDelta
    logprobs: ChoiceLogprobs | None = Field(default=None, exclude_if=is_none)
    finish_reason: FinishReasonName | None = None


class ChatChunk(BaseModel):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = Field(default=None, exclude_if=is_none)
    timings: Timings | None = Field(default=None, exclude_if=is_none)
    sampling: SamplingReport | None = Field(default=None, exclude_if=is_none)
    prompt_progress: PromptProgressReport | None = Field(default=None, exclude_if=is_none)
