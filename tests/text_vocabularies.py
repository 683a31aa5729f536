"""Tokenizers for tests: the vocabularies of two real models, kept small, and tiny ones made up here."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from minfer.text import Tokenizer, build_tokenizer

DATA = Path(__file__).parent / "data"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_ALPHABET = {byte: chr(byte) for byte in _PRINTABLE}
BYTE_ALPHABET |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in BYTE_ALPHABET)}
"""GPT-2's character for each byte."""


def spelled(text: str) -> str:
    """A text in GPT-2's alphabet of bytes."""
    return "".join(BYTE_ALPHABET[byte] for byte in text.encode())


def read_json(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@lru_cache
def real_metadata(model: str) -> dict[str, Any]:
    """The tokenizer's metadata of a real model: `smollm2-135m` or `qwen2.5-coder-0.5b`.

    Its merges make its tokens in order, so for each merge the file holds only where it cuts the token.
    """
    stored = json.loads(lzma.decompress((DATA / "text" / f"vocabulary-{model}.json.xz").read_bytes()))
    tokens: list[str] = stored["tokens"]
    types = [NORMAL] * len(tokens)
    for kind, ids in stored["other_types"].items():
        for token_id in ids:
            types[token_id] = int(kind)
    merged = tokens[stored["first_merged_token"] :]
    merges = [f"{token[:cut]} {token[cut:]}" for token, cut in zip(merged, stored["merge_splits"], strict=False)]
    metadata: dict[str, Any] = stored["metadata"]
    return metadata | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }


@lru_cache
def real_tokenizer(model: str) -> Tokenizer:
    return build_tokenizer(real_metadata(model))


def bpe_metadata(
    extra: Sequence[tuple[str, int]] = (), merges: Sequence[str] = (), pre: str = "gpt-2", **others: Any
) -> dict[str, Any]:
    """A byte-level BPE: tokens 0 to 255 are the bytes, then what the merges make, then `extra` texts with their types.

    `others` are further keys below `tokenizer.ggml.`.
    """
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*(BYTE_ALPHABET[byte] for byte in range(256)), *made, *(text for text, _ in extra)]
    types = [NORMAL] * (256 + len(made)) + [kind for _, kind in extra]
    given = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": list(merges), **others}
    return {f"tokenizer.ggml.{key}": value for key, value in given.items()}


SPM_FIRST_FREE = 3 + 256


def spm_metadata(
    scored: Sequence[tuple[str, float]], extra: Sequence[tuple[str, int]] = (), **others: Any
) -> dict[str, Any]:
    """SentencePiece's BPE: `<unk>`, `<s>`, `</s>`, bytes, then normal tokens with scores, then `extra` with types."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    tokens += [text for text, _ in scored] + [text for text, _ in extra]
    types += [NORMAL] * len(scored) + [kind for _, kind in extra]
    scores = [0.0] * SPM_FIRST_FREE + [score for _, score in scored] + [0.0] * len(extra)
    given = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, **others}
    return {f"tokenizer.ggml.{key}": value for key, value in given.items()}
