"""SentencePiece's BPE: of all neighbours that make a token together, the pair with the best score is merged first.

Characters that have no token become byte tokens, `<0xE2>`. Spaces are written as U+2581.

The `sentencepiece` library does the work, on a model that is written here from the file's vocabulary. llama.cpp knows
no kinds of tokens while it merges, and does not normalise text; so that both give the same ids, all tokens but the
bytes and the unknown token are declared to be normal ones, and the identity is the normaliser.

Source: T. Kudo and J. Richardson, "SentencePiece: A simple and language independent subword tokenizer and detokenizer
for Neural Text Processing", 2018; sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from sentencepiece import SentencePieceProcessor

from minfer.errors import TokenizerError
from minfer.text.token_types import BYTE_TOKENS
from minfer.text.vocabulary import Vocabulary

_SPACE = "\u2581"

# Field numbers and constants of sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALISER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_PIECE_NORMAL, _PIECE_UNKNOWN, _PIECE_BYTE = 1, 2, 6
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_MODEL_TYPE_BPE = 2
_ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES, _ESCAPE_WHITESPACES = 3, 4, 5


class SpmEncoder:
    """Text without special tokens to ids. It may be used from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """
        Raises:
            TokenizerError: if the vocabulary lacks one of the 256 bytes, or the library refuses it.
        """
        missing = [text for text in BYTE_TOKENS if text not in vocabulary.ids]
        if missing:
            raise TokenizerError(
                f"a 'llama' tokenizer falls back to bytes, but {len(missing)} of the 256 byte tokens are missing, "
                f"among them {missing[0]}"
            )
        try:
            self._processor = SentencePieceProcessor(model_proto=_model_proto(vocabulary))
        except Exception as error:
            raise TokenizerError(f"the vocabulary does not make a SentencePiece model: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Spaces in the text are spaces; a space in front of it, where the model wants one, is the caller's to add."""
        ids: list[int] = self._processor.encode(text.replace(" ", _SPACE), out_type=int)
        return ids

    def decode_token(self, text: str) -> bytes:
        """The bytes of a normal token."""
        return text.replace(_SPACE, " ").encode()


def _model_proto(vocabulary: Vocabulary) -> bytes:
    trainer = _varint_field(_MODEL_TYPE, _MODEL_TYPE_BPE) + _varint_field(_BYTE_FALLBACK, 1)
    normaliser = b"".join(
        _varint_field(flag, 0) for flag in (_ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES, _ESCAPE_WHITESPACES)
    )
    return b"".join(
        (
            *(_bytes_field(_PIECES, piece) for piece in _pieces(vocabulary)),
            _bytes_field(_TRAINER, trainer),
            _bytes_field(_NORMALISER, normaliser),
        )
    )


def _pieces(vocabulary: Vocabulary) -> Iterator[bytes]:
    kinds = {vocabulary.ids[text]: _PIECE_BYTE for text in BYTE_TOKENS}
    if vocabulary.unk_id is not None:
        kinds[vocabulary.unk_id] = _PIECE_UNKNOWN
    for token_id, (text, score) in enumerate(zip(vocabulary.tokens, vocabulary.scores, strict=True)):
        yield (
            _bytes_field(_PIECE_TEXT, text.encode())
            + _tag(_PIECE_SCORE, 5)
            + struct.pack("<f", score)
            + _varint_field(_PIECE_TYPE, kinds.get(token_id, _PIECE_NORMAL))
        )


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint_field(field: int, value: int) -> bytes:
    return _tag(field, 0) + _varint(value)


def _bytes_field(field: int, value: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
