"""Logprobs in the form of /v1/completions: lists side by side, with offsets into the text."""

from __future__ import annotations

from collections.abc import Sequence

from minfer.serve.completion_prompt import CompletionPrompt
from minfer.serve.engine_protocol import TokenLogprobs
from minfer.serve.schema_completions import CompletionLogprobs
from minfer.serve.token_text import finite, shown
from minfer.text import Tokenizer


class LogprobsWriter:
    """Writes the tokens of one answer, in order, and keeps count of the characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.stream_decoder(special=False, at_start=False)
        self._offset = 0

    def prompt(self, prompt: CompletionPrompt, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The tokens of an echoed prompt: the first without a logprob, the others with those of `entries`."""
        lists = _empty()
        decoder = self._tokenizer.stream_decoder(special=True)
        n_characters = 0
        for index, token in enumerate(prompt.tokens):
            lists.text_offset.append(n_characters)
            if index > 0 or not prompt.has_own_bos:
                n_characters += len(decoder.push(token))
            if index == 0:
                lists.tokens.append(shown(self._tokenizer, token))
                lists.token_logprobs.append(None)
                lists.top_logprobs.append(None)
            else:
                self._append(lists, entries[index - 1])
        self._offset = len(prompt.text)
        return lists

    def answer(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """The next tokens of the answer."""
        lists = _empty()
        for entry in entries:
            lists.text_offset.append(self._offset)
            self._offset += len(self._decoder.push(entry.token))
            self._append(lists, entry)
        return lists

    def _append(self, lists: CompletionLogprobs, entry: TokenLogprobs) -> None:
        lists.tokens.append(shown(self._tokenizer, entry.token))
        lists.token_logprobs.append(finite(entry.logprob))
        top: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            # Tokens may look alike; the likeliest of them stands for all.
            text = shown(self._tokenizer, token)
            top[text] = max(finite(logprob), top.get(text, finite(logprob)))
        lists.top_logprobs.append(top)


def joined(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """The lists of several parts as one."""
    lists = _empty()
    for part in parts:
        lists.tokens += part.tokens
        lists.token_logprobs += part.token_logprobs
        lists.top_logprobs += part.top_logprobs
        lists.text_offset += part.text_offset
    return lists


def _empty() -> CompletionLogprobs:
    return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
