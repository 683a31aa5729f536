"""One chat answer as it comes: thoughts, text and calls, told apart."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field
from typing import Final

from minfer.engine import StopCause
from minfer.engine.thinking import ThinkingSplitter
from minfer.serve.chat_prompt import ChatPrompt
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
        self._splitter = ThinkingSplitter(prompt.starts_in_thought) if splits_reasoning else None
        self._thoughts = _Trimmed()
        self._calls = call_parser(prompt.tool_format, prompt.tool_names)
        self._calls.push(prompt.open_call)
        self._one_call = one_call
        self.n_calls = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing that comes now belongs to the answer."""
        return self._one_call and self.n_calls > 0

    def push(self, text: str) -> Update:
        """What the next piece of text adds."""
        thought, answer = self._split(text)
        return self._update(thought, self._calls.push(answer))

    def finish(self, cause: StopCause = StopCause.END_OF_GENERATION) -> Update:
        """What was held back until the end."""
        thought, answer = self._split(None)
        is_cut = cause.finish_reason == "length"
        return self._update(thought, [*self._calls.push(answer), *self._calls.finish(is_cut=is_cut)])

    def finish_reason(self, cause: StopCause) -> FinishReasonName:
        """Why the answer is over, as OpenAI names it."""
        if self.n_calls and (cause.finish_reason == "stop" or self.is_over):
            return "tool_calls"
        return "stop" if cause.finish_reason == "stop" else "length"

    def _split(self, text: str | None) -> tuple[str, str]:
        """Thoughts and answer in the next text; None is the end of it."""
        if self._splitter is None:
            return "", text or ""
        parts = self._splitter.finish() if text is None else self._splitter.push(text)
        thought = "".join(part.text for part in parts if part.is_thinking)
        return self._thoughts.push(thought), "".join(part.text for part in parts if not part.is_thinking)

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


class _Trimmed:
    """Drops white space at the start and the end of a text that comes in pieces."""

    def __init__(self) -> None:
        self._held: str | None = None
        """white space that more text has to follow; None at the start"""

    def push(self, text: str) -> str:
        text = text.lstrip() if self._held is None else self._held + text
        shown = text.rstrip()
        if shown or self._held is not None:
            self._held = text[len(shown) :]
        return shown


def _call_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
