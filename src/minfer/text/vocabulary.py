"""The vocabulary in a GGUF file: the tokens, what kind each one is, and the ids with a meaning of their own.

The keys are those of the GGUF specification (`tokenizer.ggml.*`). What a file leaves unsaid is taken to be what
llama.cpp takes it to be. `remove_extra_whitespaces` is not read: neither of the supported models does that.
"""

from __future__ import annotations

import warnings
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from minfer.errors import MinferWarning, TokenizerError, UnsupportedError
from minfer.text.ends import ENDING_IDS, MARKER_IDS, find_ends
from minfer.text.pretokenizers import PreTokenizer, find_pre_tokenizer
from minfer.text.token_types import BYTE_TOKENS, SPECIAL_TYPES, TokenType


class TokenizerModel(Enum):
    """The values of `tokenizer.ggml.model` that are supported."""

    BPE = "gpt2"
    """Byte-level BPE with a list of merges."""
    SPM = "llama"
    """SentencePiece's BPE: the best-scored pair first, bytes for what has no token."""


@dataclass(frozen=True)
class Vocabulary:
    """A validated vocabulary. All ids lie within it, and no two tokens have the same text."""

    model: TokenizerModel
    tokens: tuple[str, ...]
    types: bytes
    """A `TokenType` for each token."""
    ids: Mapping[str, int]
    """Text of a token -> its id."""
    scores: array[float]
    """SPM only, f32, one for each token: of all possible merges, the one whose result scores best comes first."""
    pre_tokenizer: PreTokenizer | None
    """BPE only."""
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    eog_ids: frozenset[int]
    """All tokens that end a generation."""
    rstrip_ids: frozenset[int]
    """Special tokens that swallow the white space after them when they are parsed from text."""
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    """SPM only: a text starts with a space that is not part of it."""

    @property
    def n_vocab(self) -> int:
        return len(self.tokens)

    def token_type(self, token_id: int) -> TokenType:
        return TokenType(self.types[token_id])

    def with_control_tokens(self, controls: Iterable[str], ends: Iterable[str]) -> Vocabulary:
        """The vocabulary with some tokens as control tokens, and some as such that end a generation. Texts that are no
        token are passed over."""
        types = bytearray(self.types)
        for text in (*controls, *ends):
            if text in self.ids:
                types[self.ids[text]] = TokenType.CONTROL
        eog_ids = self.eog_ids | {self.ids[text] for text in ends if text in self.ids}
        return replace(self, types=bytes(types), eog_ids=eog_ids)

    def ids_of_types(self, types: Collection[TokenType]) -> list[int]:
        """The ids of all tokens of these types, ascending."""
        return _ids_of_types(self.types, types)


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Reads and checks the vocabulary of a GGUF file.

    Raises:
        UnsupportedError: another tokenizer model or pre-tokenizer than the supported ones.
        TokenizerError: something is missing, of the wrong kind, or does not fit the rest.

    Warns:
        MinferWarning: a byte-level BPE without the name of its pre-tokenizer.
    """
    model = _model(metadata)
    pre_tokenizer = None
    if model is TokenizerModel.BPE:
        pre_tokenizer = find_pre_tokenizer(_pre_tokenizer_name(metadata))
    tokens = _tokens(metadata)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        text, n = Counter(tokens).most_common(1)[0]
        raise TokenizerError(f"tokenizer.ggml.tokens: the token {text!r} occurs {n} times")

    types = _types(metadata, tokens)
    spm = model is TokenizerModel.SPM
    given = _token_ids(metadata, len(tokens))
    # llama.cpp's defaults. Those that it has for BPE are one old model's, and wrong for every other.
    defaults = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} if spm else {}
    given = {key: token_id for key, token_id in defaults.items() if token_id < len(tokens)} | given
    eog_ids = find_ends(ids, types, given)
    add_bos = _scalar(metadata, "add_bos_token", bool, spm or (pre_tokenizer is not None and pre_tokenizer.add_bos))
    if add_bos and "bos_token_id" not in given:
        raise TokenizerError("the model wants a BOS token, but tokenizer.ggml.bos_token_id is missing")
    return Vocabulary(
        model=model,
        tokens=tokens,
        types=bytes(types),
        ids=ids,
        scores=_scores(metadata, len(tokens)) if spm else array("f"),
        pre_tokenizer=pre_tokenizer,
        bos_id=given.get("bos_token_id"),
        eos_id=given.get("eos_token_id"),
        unk_id=given.get("unknown_token_id"),
        pad_id=given.get("padding_token_id"),
        eog_ids=eog_ids,
        rstrip_ids=_rstrip_ids(metadata, ids, types),
        add_bos=add_bos,
        add_eos=_scalar(metadata, "add_eos_token", bool, False),
        add_space_prefix=spm and _scalar(metadata, "add_space_prefix", bool, True),
    )


def read_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges of a byte-level BPE, the first one first.

    Raises:
        TokenizerError: there are none, or one is not a pair.
    """
    if "tokenizer.ggml.merges" not in metadata:
        raise TokenizerError("tokenizer.ggml.merges is missing; a 'gpt2' tokenizer needs them")
    # A pair given twice keeps its first rank, as everywhere.
    merges = list(dict.fromkeys(_array(metadata, "merges", {str})))
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    bad = next((merge for merge, (left, right) in zip(merges, pairs, strict=True) if not (left and right)), None)
    if bad is not None:
        raise TokenizerError(f"tokenizer.ggml.merges has {bad!r}, which is not two parts with a space between")
    return pairs


def _model(metadata: Mapping[str, Any]) -> TokenizerModel:
    name = _scalar(metadata, "model", str, None)
    if name is None:
        raise TokenizerError("the file has no tokenizer: tokenizer.ggml.model is missing")
    try:
        return TokenizerModel(name)
    except ValueError:
        raise UnsupportedError(
            f"the tokenizer model {name!r} (tokenizer.ggml.model)", [model.value for model in TokenizerModel]
        ) from None


def _pre_tokenizer_name(metadata: Mapping[str, Any]) -> str:
    """The name in `tokenizer.ggml.pre`. Files older than the key lack it, whatever their model needs."""
    name: str | None = _scalar(metadata, "pre", str, None)
    if name is not None:
        return name
    warnings.warn(
        "the file does not say how its text is split before BPE (tokenizer.ggml.pre is missing): 'default' is used, "
        "which gives other tokens, and worse answers, if the model was trained with another one; convert the model "
        "anew, or fetch a newer file of it",
        MinferWarning,
        stacklevel=2,
    )
    return "default"


def _tokens(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = _array(metadata, "tokens", {str})
    if not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is missing or empty")
    if "" in tokens:  # no text can hold it, but its id may be needed
        return tuple(text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(tokens))
    return tuple(tokens)


def _types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> bytearray:
    types = _array(metadata, "token_type", {int})
    if not types:
        return bytearray([TokenType.NORMAL]) * len(tokens)
    _check_length("token_type", len(types), len(tokens))
    if min(types) < 0 or max(types) > max(TokenType):
        bad = next(token_id for token_id, kind in enumerate(types) if not 0 <= kind <= max(TokenType))
        raise TokenizerError(f"tokenizer.ggml.token_type[{bad}] is {types[bad]}; the types are 0 to {max(TokenType)}")
    for text in (tokens[token_id] for token_id in _ids_of_types(bytes(types), (TokenType.BYTE,))):
        if text not in BYTE_TOKENS:
            raise TokenizerError(f"the token {text!r} has the type of a byte, but is not written like one (<0x00>)")
    return bytearray(types)


def _scores(metadata: Mapping[str, Any], n_tokens: int) -> array[float]:
    scores = _array(metadata, "scores", {float, int})
    if not scores:
        raise TokenizerError("tokenizer.ggml.scores is missing; a 'llama' tokenizer merges by them")
    _check_length("scores", len(scores), n_tokens)
    return array("f", scores)


def _rstrip_ids(metadata: Mapping[str, Any], ids: Mapping[str, int], types: bytearray) -> frozenset[int]:
    """GGUF has no key for it: of the supported models only Phi-3 has such tokens, and is known by its name."""
    name = metadata.get("general.name")
    if not isinstance(name, str) or not any(part in name.lower() for part in ("phi-3", "phi3")):
        return frozenset()
    stripping = _ids_of_types(bytes(types), (TokenType.USER_DEFINED, *SPECIAL_TYPES))
    return frozenset(stripping) - {ids.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")}


def _ids_of_types(types: bytes, wanted: Collection[TokenType]) -> list[int]:
    ids: list[int] = np.flatnonzero(np.isin(np.frombuffer(types, np.uint8), list(wanted))).tolist()
    return ids


def _token_ids(metadata: Mapping[str, Any], n_tokens: int) -> dict[str, int]:
    """The ids that the file gives, by key."""
    given: dict[str, int] = {}
    for key in ("bos_token_id", "unknown_token_id", "padding_token_id", *ENDING_IDS, *MARKER_IDS):
        token_id = _scalar(metadata, key, int, None)
        if token_id is None:
            continue
        if not 0 <= token_id < n_tokens:
            raise TokenizerError(f"tokenizer.ggml.{key} is {token_id}, but the vocabulary has {n_tokens} tokens")
        given[key] = token_id
    return given


def _scalar(metadata: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TokenizerError(f"tokenizer.ggml.{name} is {value!r}, not a {kind.__name__}")
    return value


def _array(metadata: Mapping[str, Any], name: str, kinds: Iterable[type]) -> list[Any]:
    """An array as a list, empty if the key is missing."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise TokenizerError(f"tokenizer.ggml.{name} is {value!r}, not an array")
    items = list(value)
    wrong = set(map(type, items)) - set(kinds)
    if wrong:
        raise TokenizerError(f"tokenizer.ggml.{name} holds a {min(kind.__name__ for kind in wrong)}")
    return items


def _check_length(name: str, length: int, n_tokens: int) -> None:
    if length != n_tokens:
        raise TokenizerError(f"tokenizer.ggml.{name} has {length} elements, but there are {n_tokens} tokens")
