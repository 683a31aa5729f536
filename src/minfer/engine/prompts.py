"""What a prompt may be, and the token ids that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from minfer.errors import ParameterError
from minfer.text import Tokenizer, is_continued

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | NDArray[np.integer] | Sequence[Message]
"""Raw text, token ids, or chat messages (`{"role": ..., "content": ...}`) for the file's template."""


def is_chat(prompt: Prompt) -> TypeGuard[Sequence[Message]]:
    """Whether a prompt is a list of messages."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def with_prefill(messages: Sequence[Message], prefill: str) -> Sequence[Message]:
    """The messages with the beginning of their answer behind them, if there is one."""
    return [*messages, {"role": "assistant", "content": prefill}] if prefill.strip() else messages


def continues_text(prompt: Prompt, continues: bool) -> bool:
    """Whether what a model answers goes on with a text, so that a space at its start belongs to it.

    Args:
        continues: whether the last of the messages is to be continued.
    """
    return not is_chat(prompt) or (continues and is_continued(dict(prompt[-1])))


def encode_prompt(
    tokenizer: Tokenizer,
    prompt: Prompt,
    *,
    special: bool = False,
    variables: Mapping[str, Any] = MappingProxyType({}),
    continues: bool = False,
) -> tuple[int, ...]:
    """The token ids of a prompt; BOS, where the model wants one, exactly once. Ids are taken as they are.

    `special` lets special tokens in raw text be parsed. In messages, those of the template are, and those that a
    user or a tool wrote are not. `variables` are for the chat template. With `continues`, the prompt ends where the
    text of the last message does.

    Raises:
        ParameterError: a prompt of another kind.
        TemplateError: messages, and the file's chat template is missing or fails.
    """
    if isinstance(prompt, str):
        return tuple(tokenizer.with_bos(tokenizer.tokenize(prompt, special=special)))
    if isinstance(prompt, np.ndarray):
        if prompt.ndim != 1 or not np.issubdtype(prompt.dtype, np.integer):
            raise ParameterError(
                f"token ids must be a one-dimensional array of integers, not {prompt.dtype}{prompt.shape}"
            )
        return tuple(prompt.tolist())
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        items = list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            messages = [item for item in items if isinstance(item, Mapping)]
            return tuple(tokenizer.encode_chat(messages, continue_final_message=continues, **variables))
        ids = [int(item) for item in items if isinstance(item, (int, np.integer)) and not isinstance(item, bool)]
        if len(ids) == len(items):
            return tuple(ids)
    raise ParameterError(
        f"a prompt is a string, a list of token ids or a list of messages, not {type(prompt).__name__}"
    )
