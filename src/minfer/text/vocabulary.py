"""The vocabulary in a GGUF file: the tokens, what kind each one is, and the ids with a meaning of their own.

The keys are those of the GGUF specification (`tokenizer.ggml.*`). What the files leave unsaid, or say wrong, is
settled as llama.cpp settles it: which tokens end a generation is known by their text as well as by their id, and a
token that must be a control token by its text is one, whatever its type says.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, TypeVar

from minfer.errors import TokenizerError, UnsupportedError
from minfer.text.pretokenizers import PreTokenizer, find_pre_tokenizer


class TokenizerModel(Enum):
    """The values of `tokenizer.ggml.model` that are supported."""

    BPE = "gpt2"
    """Byte-level BPE with a list of merges."""
    SPM = "llama"
    """SentencePiece's BPE: the best-scored pair first, bytes for what has no token."""


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    """Only ever parsed from text when that is asked for."""
    USER_DEFINED = 4
    """Always parsed from text, before everything else."""
    UNUSED = 5
    BYTE = 6


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

    def ids_of_types(self, types: Collection[TokenType]) -> list[int]:
        """The ids of all tokens of these types, ascending."""
        return [token_id for token_id, kind in enumerate(self.types) if kind in types]


SPECIAL_TYPES = frozenset({TokenType.CONTROL, TokenType.UNKNOWN})
"""Left out of text that is made without special tokens, and not parsed from text unless that is asked for."""

BYTE_TOKENS: Mapping[str, int] = MappingProxyType({f"<0x{byte:02X}>": byte for byte in range(256)})
"""The text of a token of type BYTE -> the byte."""

_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)

# Markers of fill-in-the-middle. For each: the keys that may give its id, and the texts to know it by where none does.
_FILL_MARKERS = {
    "prefix": (
        ("fim_pre_token_id", "prefix_token_id"),
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
    ),
    "suffix": (
        ("fim_suf_token_id", "suffix_token_id"),
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
    ),
    "middle": (
        ("fim_mid_token_id", "middle_token_id"),
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
    ),
    "pad": (("fim_pad_token_id",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "repository": (
        ("fim_rep_token_id",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    "file": (("fim_sep_token_id",), ("<|file_sep|>",)),
}
_ENDING_FILL_MARKERS = ("pad", "repository", "file")

# Of the control-looking tokens of gpt-oss, those that belong to the answer.
_ALWAYS_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")

T = TypeVar("T")


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Reads and checks the vocabulary of a GGUF file.

    Raises:
        UnsupportedError: another tokenizer model or pre-tokenizer than the supported ones.
        TokenizerError: something is missing, of the wrong kind, or does not fit the rest.
    """
    model = _model(metadata)
    pre_tokenizer = None
    if model is TokenizerModel.BPE:
        pre_tokenizer = find_pre_tokenizer(_scalar(metadata, "pre", str, "default"))
    tokens = _tokens(metadata)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        text, n = Counter(tokens).most_common(1)[0]
        raise TokenizerError(f"tokenizer.ggml.tokens: the token {text!r} occurs {n} times")

    types = _types(metadata, tokens)
    spm = model is TokenizerModel.SPM
    special_ids = {
        name: _token_id(metadata, f"{name}_token_id", len(tokens), default)
        # llama.cpp's defaults for SPM. Those that it has for BPE are one old model's, and wrong for every other.
        for name, default in (
            ("bos", 1 if spm else None),
            ("eos", 2 if spm else None),
            ("unknown", 0 if spm else None),
            ("padding", None),
            ("eot", None),
            ("eom", None),
        )
    }
    eog_ids = _find_ends(metadata, ids, types, special_ids)
    add_bos = _scalar(metadata, "add_bos_token", bool, spm or (pre_tokenizer is not None and pre_tokenizer.add_bos))
    if add_bos and special_ids["bos"] is None:
        raise TokenizerError("the model wants a BOS token, but tokenizer.ggml.bos_token_id is missing")
    return Vocabulary(
        model=model,
        tokens=tokens,
        types=bytes(types),
        ids=ids,
        scores=_scores(metadata, len(tokens)) if spm else array("f"),
        pre_tokenizer=pre_tokenizer,
        bos_id=special_ids["bos"],
        eos_id=special_ids["eos"],
        unk_id=special_ids["unknown"],
        pad_id=special_ids["padding"],
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
    merges: list[tuple[str, str]] = []
    # A pair given twice keeps its first rank, as everywhere.
    for rank, merge in enumerate(dict.fromkeys(_array(metadata, "merges", {str}))):
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise TokenizerError(f"tokenizer.ggml.merges[{rank}] is {merge!r}, not two parts with a space between")
        merges.append((left, right))
    return merges


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


def _tokens(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    tokens = _array(metadata, "tokens", {str})
    if not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is missing or empty")
    # No text can hold an empty token, but its id may be needed.
    return tuple(text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(tokens))


def _types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> bytearray:
    types = _array(metadata, "token_type", {int})
    if not types:
        return bytearray([TokenType.NORMAL]) * len(tokens)
    _check_length("token_type", len(types), len(tokens))
    if min(types) < 0 or max(types) > max(TokenType):
        bad = next(token_id for token_id, kind in enumerate(types) if not 0 <= kind <= max(TokenType))
        raise TokenizerError(f"tokenizer.ggml.token_type[{bad}] is {types[bad]}; the types are 0 to {max(TokenType)}")
    for text, kind in zip(tokens, types, strict=True):
        if kind == TokenType.BYTE and text not in BYTE_TOKENS:
            raise TokenizerError(f"the token {text!r} has the type of a byte, but is not written like one (<0x00>)")
    return bytearray(types)


def _scores(metadata: Mapping[str, Any], n_tokens: int) -> array[float]:
    scores = _array(metadata, "scores", {float, int})
    if not scores:
        raise TokenizerError("tokenizer.ggml.scores is missing; a 'llama' tokenizer merges by them")
    _check_length("scores", len(scores), n_tokens)
    return array("f", scores)


def _find_ends(
    metadata: Mapping[str, Any], ids: Mapping[str, int], types: bytearray, special_ids: Mapping[str, int | None]
) -> frozenset[int]:
    """The end-of-generation tokens; sets the types of the tokens that are known by their text."""
    ends: set[int] = set()
    for name, (keys, texts) in _FILL_MARKERS.items():
        given = [_token_id(metadata, key, len(types), None) for key in keys]
        marker = next((token_id for token_id in given if token_id is not None), None)
        if marker is None:
            marker = next((ids[text] for text in texts if text in ids), None)
            if marker is not None:
                types[marker] = TokenType.CONTROL
        if marker is not None and name in _ENDING_FILL_MARKERS:
            ends.add(marker)
    for text in _END_TEXTS:
        if text in ids:
            types[ids[text]] = TokenType.CONTROL
            ends.add(ids[text])
    for text in _ALWAYS_SHOWN_TEXTS:
        if text in ids:
            types[ids[text]] = TokenType.USER_DEFINED
    ends.update(token_id for name in ("eos", "eot", "eom") if (token_id := special_ids[name]) is not None)

    def all_end(*texts: str) -> bool:
        return all(ids.get(text) in ends for text in texts)

    calls = all_end("<|call|>") or all_end("<|calls|>")
    if calls and all_end("<|end|>") and (all_end("<|return|>") or all_end("<|flush|>")):
        # Here <|end|> ends one of several messages of an answer.
        ends.remove(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if all_end("</s>") and (all_end("<|tool_response>") or all_end("<|plamo:eos|>")):
        # Here </s> is an HTML tag.
        ends.remove(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return frozenset(ends)


def _rstrip_ids(metadata: Mapping[str, Any], ids: Mapping[str, int], types: bytearray) -> frozenset[int]:
    """GGUF has no key for it: of the supported models only Phi-3 has such tokens, and is known by its name."""
    name = metadata.get("general.name")
    if not isinstance(name, str) or not any(part in name.lower() for part in ("phi-3", "phi3")):
        return frozenset()
    stripping = {
        token_id
        for token_id, kind in enumerate(types)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    }
    return frozenset(stripping - {ids.get(text, -1) for text in ("<unk>", "<s>", "<|endoftext|>")})


def _token_id(metadata: Mapping[str, Any], name: str, n_tokens: int, default: int | None) -> int | None:
    token_id: int | None = _scalar(metadata, name, int, None)
    if token_id is None:
        return default if default is not None and default < n_tokens else None
    if not 0 <= token_id < n_tokens:
        raise TokenizerError(f"tokenizer.ggml.{name} is {token_id}, but the vocabulary has {n_tokens} tokens")
    return token_id


def _scalar(metadata: Mapping[str, Any], name: str, kind: type[T], default: T | None) -> Any:
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
