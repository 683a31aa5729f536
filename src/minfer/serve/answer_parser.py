"""One chat answer as it comes: thoughts, text and calls, told apart."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field
from typing import Final

from minfer.engine import StopCause
from minfer.serve.chat_prompt import ChatPrompt
from minfer.serve.reasoning import ReasoningSplitter
from minfer.serve.schema_chat import CalledFunction, FinishReasonName, MadeCall
from minfer.serve.tool_calls import ParsedCall, Piece, call_parser

_ID_CHARACTERS: Final = string.ascii_letters + string.digits
_ID_LENGTH: Final = 9  # what Mistral's templates insist on


@dataclass
class Update:
    """What is new in an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[MadeCall] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class AnswerParser:
    """Takes the text of one answer piece by piece."""

    def __init__(self, prompt: ChatPrompt, *, splits_reasoning: bool, one_call: bool) -> None:
        """
        Args:
            splits_reasoning: whether thoughts are told apart.
            one_call: whether the answer is over with its first call.
        """
        self._splitter = ReasoningSplitter(starts_in_thought=prompt.starts_in_thought) if splits_reasoning else None
        self._calls = call_parser(prompt.tool_format, prompt.tool_names)
        self._one_call = one_call
        self.n_calls = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing that comes now belongs to the answer."""
        return self._one_call and self.n_calls > 0

    def push(self, text: str) -> Update:
        """What the next piece of text adds."""
        thought, answer = self._splitter.push(text) if self._splitter else ("", text)
        return self._update(thought, self._calls.push(answer))

    def finish(self) -> Update:
        """What was held back until the end."""
        thought, answer = self._splitter.finish() if self._splitter else ("", "")
        return self._update(thought, [*self._calls.push(answer), *self._calls.finish()])

    def finish_reason(self, cause: StopCause) -> FinishReasonName:
        """Why the answer is over, as OpenAI names it."""
        if self.n_calls and (cause.finish_reason == "stop" or self.is_over):
            return "tool_calls"
        return "stop" if cause.finish_reason == "stop" else "length"

    def _update(self, thought: str, pieces: list[Piece]) -> Update:
        update = Update(thought)
        for piece in pieces:
            if self.is_over:
                break
            if isinstance(piece, ParsedCall):
                self.n_calls += 1
                function = CalledFunction(name=piece.name, arguments=piece.arguments)
                update.calls.append(MadeCall(id=_call_id(), function=function))
            else:
                update.content += piece
        return update


def _call_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
