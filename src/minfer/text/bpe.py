"""Byte-level BPE, as in GPT-2: a text's UTF-8 bytes are written as 256 printable characters, and pairs of them merged.

The merging is done by the `tokenizers` library (in Rust) with the file's own vocabulary and merges.

Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; R. Sennrich et al., "Neural
Machine Translation of Rare Words with Subword Units", 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from minfer.errors import TokenizerError
from minfer.text.pretokenizers import PreTokenizer
from minfer.text.vocabulary import Vocabulary

_PRINTABLE = (*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + rank): byte for rank, byte in enumerate(_OTHERS)}


class BpeEncoder:
    """Text without special tokens to ids. It may be used from several threads."""

    def __init__(self, vocabulary: Vocabulary, merges: Sequence[tuple[str, str]], pre_tokenizer: PreTokenizer) -> None:
        """
        Args:
            merges: the first one first.

        Raises:
            TokenizerError: if a merge is of, or makes, something that is not a token.
        """
        try:
            model = models.BPE(
                vocab=dict(vocabulary.ids),
                merges=list(merges),
                ignore_merges=pre_tokenizer.ignore_merges,
            )
        except Exception as error:
            raise TokenizerError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(expression), "isolated") for expression in pre_tokenizer.expressions),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        # Most vocabularies lack bytes that UTF-8 never has, and some lack rare control characters.
        self._missing_bytes = frozenset(byte for character, byte in _BYTES.items() if character not in vocabulary.ids)

    def encode(self, text: str) -> list[int]:
        """
        Raises:
            TokenizerError: if the vocabulary lacks a byte of the text; the library would drop it without a word.
        """
        if self._missing_bytes and (missing := self._missing_bytes.intersection(text.encode())):
            at = next(index for index, character in enumerate(text) if missing.intersection(character.encode()))
            raise TokenizerError(
                f"the vocabulary has no token for the byte 0x{min(missing):02X}; "
                f"the text needs it, for example for the character {text[at]!a} (U+{ord(text[at]):04X})"
            )
        # Not encode_batch: it starts a thread pool, and the library then warns on standard error after every fork.
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode_token(self, text: str) -> bytes:
        """The bytes of a normal token; one that is not written in the alphabet of bytes stands for itself."""
        try:
            return bytes(map(_BYTES.__getitem__, text))
        except KeyError:
            return text.encode()
