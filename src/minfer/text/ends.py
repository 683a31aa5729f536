"""Which tokens end a generation.

A GGUF file names one or two such tokens by id, and often more are meant. As in llama.cpp the others are known by their
text, and a token that must be a control token by its text is one, whatever its type in the file says.
"""

from __future__ import annotations

from collections.abc import Mapping

from minfer.text.token_types import TokenType

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


ENDING_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
MARKER_IDS = tuple(key for keys, _ in _FILL_MARKERS.values() for key in keys)
"""The keys below `tokenizer.ggml.` that name a token of interest here."""


def find_ends(ids: Mapping[str, int], types: bytearray, given: Mapping[str, int]) -> frozenset[int]:
    """The ids of the tokens that end a generation.

    Args:
        ids: each token's text -> its id.
        types: a `TokenType` for each token; those that the text of a token overrules are changed.
        given: the ids that the file gives, by key: of `ENDING_IDS` and `MARKER_IDS` those that it has.
    """
    ends = {given[key] for key in ENDING_IDS if key in given}
    for name, (keys, texts) in _FILL_MARKERS.items():
        marker = next((given[key] for key in keys if key in given), None)
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

    def is_end(text: str) -> bool:
        return ids.get(text) in ends

    calls = is_end("<|call|>") or is_end("<|calls|>")
    if calls and is_end("<|end|>") and (is_end("<|return|>") or is_end("<|flush|>")):
        # Here <|end|> ends one of several messages of an answer.
        ends.remove(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if is_end("</s>") and (is_end("<|tool_response>") or is_end("<|plamo:eos|>")):
        # Here </s> is an HTML tag.
        ends.remove(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
    return frozenset(ends)
