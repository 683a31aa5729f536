"""Chat templates that a caller gives in place of the file's own: well-known ones by name, files, and texts.

The named ones are in `named/`, one file each. They write talk between a user and a model, with a system prompt; they
know nothing of tools. The names are llama.cpp's where it has the same one. Sources: the templates that the makers of
the models published with them, and for Mistral's `mistral-common`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Final

from minfer.errors import ParameterError

MAX_FILE_BYTES: Final = 1_000_000


@dataclass(frozen=True)
class GivenTemplate:
    """A chat template that takes the place of a file's own."""

    source: str
    name: str | None = None
    """None for a file or a text"""
    markers: tuple[str, ...] = ()
    """the control tokens that it writes, but for BOS and EOS"""
    ends: tuple[str, ...] = ()
    """those of them that end an answer"""


_IM = ("<|im_start|>", "<|im_end|>")
_LLAMA_3 = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_LLAMA_4 = ("<|header_start|>", "<|header_end|>", "<|eot|>")
_PHI_3 = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_COMMAND_R = (
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
)
_GRANITE = ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>")
_GLM_4 = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>")
_INST = ("[INST]", "[/INST]")
_MISTRAL_7 = ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", *_INST)

_MARKERS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = MappingProxyType(
    {
        "chatml": (_IM, ("<|im_end|>",)),
        "command-r": (_COMMAND_R, ("<|END_OF_TURN_TOKEN|>",)),
        "deepseek2": ((), ()),
        "deepseek3": (("<｜User｜>", "<｜Assistant｜>"), ()),
        "gemma": (("<start_of_turn>", "<end_of_turn>"), ("<end_of_turn>",)),
        "glm4": (_GLM_4, ("<|user|>",)),
        "granite": (_GRANITE, ("<|end_of_text|>",)),
        "llama2": ((), ()),
        "llama3": (_LLAMA_3, ("<|eot_id|>",)),
        "llama4": (_LLAMA_4, ("<|eot|>",)),
        "mistral-v1": ((), ()),
        "mistral-v3": (_INST, ()),
        "mistral-v3-tekken": (_INST, ()),
        "mistral-v7": (_MISTRAL_7, ()),
        "mistral-v7-tekken": (_MISTRAL_7, ()),
        "phi3": (_PHI_3, ("<|end|>",)),
        "phi4": ((*_IM, "<|im_sep|>"), ("<|im_end|>",)),
        "phi4-mini": (_PHI_3, ("<|end|>",)),
        "vicuna": ((), ()),
        "zephyr": ((), ()),
    }
)
"""For each named template its markers and ends. One without any marks turns by plain text, and EOS ends them."""

TEMPLATE_NAMES: Final = tuple(_MARKERS)


def find_template(given: str | Path) -> GivenTemplate:
    """The template that a caller means.

    Args:
        given: a name (`TEMPLATE_NAMES`), the path of a file, or a template itself, which is told by its `{{` or `{%`.

    Raises:
        ParameterError: it is none of these, or the file can't be read.
    """
    if isinstance(given, Path):
        return GivenTemplate(_read(given))
    if not isinstance(given, str) or not given.strip():
        raise ParameterError(f"chat_template must be a name, a path or a template, not {given!r}")
    if given in _MARKERS:
        markers, ends = _MARKERS[given]
        source = files("minfer.text.template").joinpath("named", f"{given}.jinja").read_text(encoding="utf-8")
        return GivenTemplate(source, given, markers, ends)
    if "{{" in given or "{%" in given:
        return GivenTemplate(given)
    return GivenTemplate(_read(Path(given)))


def _read(path: Path) -> str:
    try:
        with path.expanduser().open("rb") as file:  # which may be a pipe, and endless
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ParameterError(
            f"the chat template {str(path)!r} is no file that can be read ({reason}), and none of the known names: "
            f"{', '.join(TEMPLATE_NAMES)}"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ParameterError(f"the chat template {str(path)!r} has more than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParameterError(
            f"the chat template {str(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None
