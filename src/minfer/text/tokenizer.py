"""The tokenizer of a model: text to ids, ids to text, chat messages to a prompt."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from minfer.errors import MinferWarning, TemplateError, TokenizerError
from minfer.text.bpe import BpeEncoder
from minfer.text.messages import checked_text, map_strings, plain_messages
from minfer.text.partition import TokenMatcher
from minfer.text.spm import SpmEncoder
from minfer.text.stream import StreamDecoder
from minfer.text.template.chat_template import DEFAULT_TEMPLATE, ChatTemplate, read_templates
from minfer.text.template.given import TEMPLATE_NAMES, find_template
from minfer.text.token_types import BYTE_TOKENS, SPECIAL_TYPES, TokenType
from minfer.text.vocabulary import Vocabulary, read_merges, read_vocabulary

_TOOLS_TEMPLATE = "tool_use"
_MAKER_ROLES = frozenset(("system", "developer"))
_MODEL_ROLES = frozenset(("assistant", "model"))
GUARD = "\ud800"
"""Stands in a chat's text behind every character of what only looks like a control token. No valid text holds a lone
surrogate, so none can be confused with it."""


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]:
        """The ids of a text without special tokens."""
        ...

    def decode_token(self, text: str) -> bytes:
        """The bytes of a normal token."""
        ...


@dataclass(frozen=True)
class TextPiece:
    """A piece of a text with its tokens: a special token, or all that stands between two of them."""

    text: str
    tokens: tuple[int, ...]
    is_special: bool


def build_tokenizer(metadata: Mapping[str, Any], chat_template: str | Path | None = None) -> Tokenizer:
    """Builds the tokenizer that a GGUF file's metadata describes (`tokenizer.*`).

    Args:
        chat_template: takes the place of the file's own: one of `minfer.text.TEMPLATE_NAMES`, the path of a file, or
            the text of a template. With a name, the tokens that end an answer in that template end a generation.

    Raises:
        UnsupportedError: another tokenizer model or pre-tokenizer than the supported ones.
        TokenizerError: the vocabulary is incomplete or contradicts itself.
        ParameterError: there is no such chat template.
        TemplateError: it does not compile.

    Warns:
        MinferWarning: the vocabulary lacks control tokens of a template that was given by name.
    """
    given = None if chat_template is None else find_template(chat_template)
    vocabulary = read_vocabulary(metadata)
    if given is None:
        return Tokenizer(vocabulary, _build_encoder(vocabulary, metadata), read_templates(metadata))
    missing = [text for text in given.markers if text not in vocabulary.ids]
    if missing:
        warnings.warn(
            f"the vocabulary has no tokens for {', '.join(missing)}, which the chat template {given.name!r} writes: "
            "they become plain text, and the model may not know what they mean",
            MinferWarning,
            stacklevel=2,
        )
    vocabulary = vocabulary.with_control_tokens(given.markers, given.ends)
    tokenizer = Tokenizer(vocabulary, _build_encoder(vocabulary, metadata), {DEFAULT_TEMPLATE: given.source})
    tokenizer.chat_templates[DEFAULT_TEMPLATE].compile()
    return tokenizer


class Tokenizer:
    """Text to ids and back; `build_tokenizer` makes it. It may be used from several threads."""

    def __init__(self, vocabulary: Vocabulary, encoder: _Encoder, templates: Mapping[str, str]) -> None:
        """
        Args:
            encoder: for the vocabulary's model.
            templates: the source of each of the file's chat templates, by name; the usual one is called `default`.
        """
        self.vocabulary = vocabulary
        self._encoder = encoder
        self._always = _matcher(vocabulary, {TokenType.USER_DEFINED}, vocabulary.rstrip_ids)
        self._special = _matcher(vocabulary, {TokenType.USER_DEFINED, *SPECIAL_TYPES}, vocabulary.rstrip_ids)
        self._control = _matcher(vocabulary, SPECIAL_TYPES)
        names = {"bos": vocabulary.bos_id, "eos": vocabulary.eos_id, "unk": vocabulary.unk_id, "pad": vocabulary.pad_id}
        variables = {
            f"{name}_token": vocabulary.tokens[token_id] for name, token_id in names.items() if token_id is not None
        }
        self.chat_templates: Mapping[str, ChatTemplate] = {
            name: ChatTemplate(source, variables, name) for name, source in templates.items()
        }

    @property
    def n_vocab(self) -> int:
        """How many tokens there are. The model's own embedding may have more rows."""
        return self.vocabulary.n_vocab

    @property
    def bos_id(self) -> int | None:
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.vocabulary.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """All tokens that end a generation."""
        return self.vocabulary.eog_ids

    @property
    def add_bos(self) -> bool:
        """Whether the model wants a BOS token in front of every text; `with_bos` puts it there."""
        return self.vocabulary.add_bos

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The file's usual chat template, or None. It is compiled when it is first used."""
        return self.chat_templates.get(DEFAULT_TEMPLATE)

    def tokenize(self, text: str, special: bool = False, add_bos: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            special: whether control tokens in the text are parsed; if not, they are plain text. (User-defined tokens
                are parsed always.)
            add_bos: whether BOS is put in front if the model wants it, as `with_bos` does.

        Raises:
            ParameterError: `text` is not a string, or holds a lone surrogate.
            TokenizerError: the vocabulary has no token for a byte of the text.
        """
        checked_text(text, "the text")
        ids = self._encode(text, special)
        return self.with_bos(ids) if add_bos else ids

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """The ids with BOS in front, exactly once, if the model wants it; else as they are."""
        given = [int(token_id) for token_id in ids]
        bos_id = self.vocabulary.bos_id
        if not self.add_bos or bos_id is None or given[:1] == [bos_id]:
            return given
        return [bos_id, *given]

    def detokenize(self, ids: Sequence[int], special: bool = True) -> str:
        """The text of ids. Bytes that are not UTF-8 become U+FFFD.

        A SentencePiece model's text starts with a space that tokenising put there; it is taken away again.

        Args:
            special: whether control tokens are written out; if not, they are left out.

        Raises:
            TokenizerError: an id is out of range.
        """
        decoder = self.stream_decoder(special=special)
        return "".join(map(decoder.push, ids)) + decoder.finish()

    def stream_decoder(self, special: bool = True, *, at_start: bool = True) -> StreamDecoder:
        """A decoder for ids that come one by one; see `detokenize`.

        Args:
            at_start: whether the ids are a text from its start. If they go on after other text, a SentencePiece model's
                leading space belongs to them, and stays.
        """
        token_bytes = self.token_bytes if special else self._plain_bytes
        has_prefix = self._has_prefix if at_start and self.vocabulary.add_space_prefix else None
        return StreamDecoder(token_bytes, has_prefix)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; none for a token that is not in use.

        Raises:
            TokenizerError: the id is out of range.
        """
        text = self.token_text(token_id)
        kind = self.vocabulary.types[token_id]
        if kind == TokenType.NORMAL:
            return self._encoder.decode_token(text)
        if kind == TokenType.BYTE:
            return bytes([BYTE_TOKENS[text]])
        if kind in (TokenType.UNUSED, TokenType.UNDEFINED):
            return b""
        return text.encode()

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it: `Ġthe` in byte-level BPE's alphabet of bytes, `▁the` in SPM.

        Raises:
            TokenizerError: the id is out of range.
        """
        if not 0 <= operator.index(token_id) < self.n_vocab:
            raise TokenizerError(f"token id {token_id} is not in the vocabulary, which has {self.n_vocab} tokens")
        return self.vocabulary.tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether a token is one that is found in a text before all others: a control or a user-defined token.

        Raises:
            TokenizerError: the id is out of range.
        """
        self.token_text(token_id)
        return self.vocabulary.types[token_id] in (TokenType.USER_DEFINED, *SPECIAL_TYPES)

    def apply_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt that the file's chat template makes of messages; tokenise it with `special=True`.

        With tools, a template named `tool_use` is used where the file has one. See `ChatTemplate.render`.

        Raises:
            ParameterError: the messages, tools or variables are not of the form they must have.
            TemplateError: there is no template, or it fails.
        """
        template = self._template(tools is not None)
        return template.render(messages, tools, add_generation_prompt, continue_final_message, **variables)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The ids of the prompt that the file's chat template makes of messages, with BOS if the model wants it.

        Control tokens are parsed where the template wrote them, and where the assistant did. In what a user or a tool
        said they are plain text, so nobody can end a message and start another from within one.

        Raises:
            As `apply_template` and `tokenize`.
        """
        prompt = self.render_chat(
            messages, tools, add_generation_prompt, continue_final_message=continue_final_message, **variables
        )
        return self.with_bos(self._encode(prompt))

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        trust_model: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt of messages, as `encode_chat` encodes it: with a `GUARD` behind every character of what looks like
        a control token and is none. `pieces` encodes it.

        Args:
            continue_final_message: as for `ChatTemplate.render`.
            trust_model: whether control tokens in what the assistant said are parsed.

        Raises:
            As `apply_template`.
        """
        template = self._template(tools is not None)
        trusted = _MAKER_ROLES | _MODEL_ROLES if trust_model else _MAKER_ROLES
        guarded = [
            message if message["role"] in trusted else self._guarded(message) for message in plain_messages(messages)
        ]
        prompt = template.render_all(guarded, tools, add_generation_prompt, variables, continues=continue_final_message)
        checked_text(prompt.replace(GUARD, ""), "what the chat template made")
        return prompt

    def pieces(self, prompt: str, after_special: bool = True) -> Iterator[TextPiece]:
        """The pieces of a text that `render_chat` made, with control tokens parsed; no BOS is added.

        Args:
            after_special: whether nothing, or a special token, comes before. There, a SentencePiece model has a space.
        """
        return self._pieces(prompt, self._special, after_special)

    def _template(self, with_tools: bool) -> ChatTemplate:
        if with_tools and _TOOLS_TEMPLATE in self.chat_templates:
            return self.chat_templates[_TOOLS_TEMPLATE]
        if self.chat_template is None:
            raise TemplateError(
                "the model has no chat template (tokenizer.chat_template), so it can't take messages: "
                "give it the prompt as raw text, or the template that it was trained with "
                f"(chat_template=, --chat-template): a file, or one of {', '.join(TEMPLATE_NAMES)}"
            )
        return self.chat_template

    def _guarded(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with a mark after every character of a control token in it, so that none is found there."""

        def guard(text: str) -> str:
            return "".join(
                piece if isinstance(piece, str) else "".join(c + GUARD for c in self.vocabulary.tokens[piece])
                for piece, _ in self._control.split(text)
            )

        return {key: value if key == "role" else map_strings(value, guard) for key, value in message.items()}

    def _encode(self, text: str, special: bool = True) -> list[int]:
        matcher = self._special if special else self._always
        return [token_id for piece in self._pieces(text, matcher) for token_id in piece.tokens]

    def _pieces(self, text: str, matcher: TokenMatcher, after_special: bool = True) -> Iterator[TextPiece]:
        start = 0
        for piece, end in matcher.split(text):
            if isinstance(piece, int):
                yield TextPiece(text[start:end], (piece,), True)
            else:
                prefix = " " if after_special and self.vocabulary.add_space_prefix else ""
                yield TextPiece(piece, tuple(self._encoder.encode(prefix + piece.replace(GUARD, ""))), False)
            after_special = isinstance(piece, int)
            start = end

    def _has_prefix(self, token_id: int) -> bool:
        return self.vocabulary.types[token_id] in (TokenType.NORMAL, TokenType.BYTE)

    def _plain_bytes(self, token_id: int) -> bytes:
        data = self.token_bytes(token_id)
        return b"" if self.vocabulary.types[token_id] in SPECIAL_TYPES else data


def _build_encoder(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> _Encoder:
    if vocabulary.pre_tokenizer is not None:
        return BpeEncoder(vocabulary, read_merges(metadata), vocabulary.pre_tokenizer)
    return SpmEncoder(vocabulary)


def _matcher(
    vocabulary: Vocabulary, types: Collection[TokenType], rstrip_ids: Collection[int] = frozenset()
) -> TokenMatcher:
    ids = {vocabulary.tokens[token_id]: token_id for token_id in vocabulary.ids_of_types(types)}
    return TokenMatcher(ids, rstrip_ids)
