"""What stands in the place of something else: a model in that of a prompt, a prompt in that of a verb."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from minfer.cli.console import UsageError
from minfer.hub import DEFAULT_MODEL_NAME, cached_models
from minfer.hub.paths import GGUF_SUFFIX, HUGGING_FACE_PREFIX
from minfer.settings import read_settings

_MAGIC = b"GGUF"


def check_prompt_argument(prompt: str, more: Sequence[str], *, model_is_given: bool) -> None:
    """Refuses a prompt that can't be meant as one.

    Args:
        more: arguments behind it.
        model_is_given: by --model; then a prompt may look like a model.

    Raises:
        UsageError: shows the command that is meant.
    """
    if not model_is_given and (_is_model(prompt) or (more and _is_name(prompt))):
        meant = shlex.join(more) if len(more) == 1 else shlex.quote(" ".join(more)) if more else '"PROMPT"'
        raise UsageError(
            f"{prompt} is a model, and stands where the prompt goes; "
            f"what is meant is perhaps:\n  minfer run --model {shlex.quote(prompt)} {meant}"
        )
    if more:
        whole = " ".join([prompt, *more])
        raise UsageError(
            f"there are {1 + len(more)} prompts, and minfer run takes one; "
            f"what is meant is perhaps:\n  minfer run {shlex.quote(whole)}"
        )


def check_verb(text: str) -> None:
    """Refuses a model or a prompt in the place of a verb.

    Raises:
        UsageError: shows the command that is meant.
    """
    quoted = shlex.quote(text)
    if _is_model(text):
        raise UsageError(f"{text} is a model; what is meant is perhaps:\n  minfer chat {quoted}")
    if any(map(str.isspace, text)):
        raise UsageError(f"there is no command {text!r}; what is meant is perhaps:\n  minfer run {quoted}")


def _is_model(text: str) -> bool:
    """Whether a text names a model by its form, or is the path of one."""
    if len(text.split()) == 1 and text.lower().endswith(GGUF_SUFFIX):
        return True
    if text.startswith(HUGGING_FACE_PREFIX) and "/" in text and not any(map(str.isspace, text)):
        return True
    return _begins_as_gguf(text)


def _begins_as_gguf(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _is_name(text: str) -> bool:
    """Whether a model in the cache goes by it, which a prompt may do by chance."""
    names = (DEFAULT_MODEL_NAME, *(model.name for model in cached_models(read_settings().cache_dir)))
    return text.casefold() in map(str.casefold, names)
