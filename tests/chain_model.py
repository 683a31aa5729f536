"""Models that say what a test wants: each token is followed by one other, whatever came before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from minfer.gguf import TensorSource, open_gguf, write_gguf
from minfer.quants import GGMLType
from tiny_models import IM_END, TINY_SPECS, vocabulary, write_tiny

THINK, END_THINK = "<think>", "</think>"
_SPEC = replace(
    TINY_SPECS["llama-mha"], n_layers=1, n_embd=320, n_heads=4, n_kv_heads=4, n_ff=32, n_vocab=300, n_ctx=32_768
)
_USER_DEFINED = 4


def write_chain(path: Path, answer: Sequence[str], template: str, *, repeats: bool = False) -> Path:
    """Writes a model to `path` and returns it. To any prompt that ends with a line break, it answers the same.

    Args:
        answer: its tokens, no two alike: bytes, the two tags of thinking, or what the tiny vocabulary has.
        template: the chat template; prompts have to end with a line break.
        repeats: whether it goes on with the first token again after the last, for ever; if not, it ends its answer.
    """
    tokens = vocabulary(_SPEC)
    tokens[-2:] = [THINK, END_THINK]
    base = write_tiny(path.with_suffix(".base"), _SPEC)
    line_break = "\u010a"
    following = dict(zip([line_break, *answer], [*answer, answer[0] if repeats else IM_END], strict=True))
    output = np.zeros((_SPEC.n_vocab, _SPEC.n_embd), np.float32)
    for token, after in following.items():
        output[tokens.index(after), tokens.index(token)] = 10
    changed = {
        # One dimension a token, which nothing else writes to.
        "token_embd.weight": np.eye(_SPEC.n_vocab, _SPEC.n_embd, dtype=np.float32),
        "output.weight": output,
        "output_norm.weight": np.ones(_SPEC.n_embd, np.float32),
    }
    with open_gguf(base) as file:
        tensors: list[TensorSource] = []
        for name, info in file.tensors.items():
            is_output_of_a_block = name.endswith(("attn_output.weight", "ffn_down.weight"))
            data = file.tensor_data(name)
            if is_output_of_a_block or name in changed:
                data = changed.get(name, np.zeros(info.shape, np.float32)).view(np.uint8)
            tensors.append((name, info.shape, GGMLType.F32, data))
        types = file.metadata["tokenizer.ggml.token_type"]
        metadata: dict[str, object] = {key: file.metadata.encoded(key) for key in file.metadata}
        metadata |= {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [*list(types)[:-2], _USER_DEFINED, _USER_DEFINED],
            "tokenizer.chat_template": template,
        }
        write_gguf(path, metadata, tensors)
    base.unlink()
    return path
