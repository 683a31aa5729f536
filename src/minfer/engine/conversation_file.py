"""A conversation in a file: what was said and its tokens, the parameters and random numbers, and the cache.

The file is that of a session (`session_file`), of the kind "conversation". What a session does not have stands in its
header under `extra`: `state` (see `chat_state`), `options` (those that JSON can hold, `logit_bias` as a list of pairs)
and `context_shift`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from minfer.engine.chat_state import ChatState, from_json, to_json
from minfer.engine.default_sampling import DefaultSampling
from minfer.engine.options import ChatOptions, check_options, make_request
from minfer.engine.runtime import Runtime, check_tokens
from minfer.engine.session import Session
from minfer.engine.session_file import load_sequence, save_sequence
from minfer.errors import SessionFileError

_KIND: Final = "conversation"


@dataclass(frozen=True)
class SavedConversation:
    """What a file has of a conversation."""

    state: ChatState
    options: ChatOptions
    context_shift: bool
    session: Session | None
    """what had been computed, if it was saved; the owner closes it"""


def save_conversation(
    path: str | Path,
    runtime: Runtime,
    session: Session | None,
    state: ChatState,
    options: ChatOptions,
    context_shift: bool,
    *,
    overwrite: bool,
) -> None:
    """Writes a conversation to a file; one that was at `path` is replaced once all of it is on the disk.

    Args:
        session: what has been computed; None leaves it out, which makes the file small.
        overwrite: whether a file of any other kind is replaced, too.

    Raises:
        ForeignFileError: a file of another kind is there.
        SessionFileError: it can't be written there.
        ParameterError: an option is not JSON.
    """
    given = {name: value for name, value in options.items() if name != "progress"}
    if "logit_bias" in given:
        # JSON has no infinity, and its keys are texts.
        given["logit_bias"] = [[token, str(bias)] for token, bias in options["logit_bias"].items()]
    extra = {"state": to_json(state), "options": given, "context_shift": context_shift}
    sequence = runtime.sequence() if session is None else session.sequence
    save_sequence(path, runtime, sequence, kind=_KIND, extra=extra, overwrite=overwrite)


def load_conversation(path: str | Path, runtime: Runtime, defaults: DefaultSampling) -> SavedConversation:
    """Reads a conversation that was saved with the same model.

    Raises:
        SessionFileError: the file can't be read, is damaged, or is of another version, model or cache type.
        ContextError: it is longer than the context, or the cache has too few pages for it.
    """
    sequence, extra = load_sequence(path, runtime, kind=_KIND)
    session = Session(runtime, sequence=sequence)
    try:
        state = from_json(extra["state"])
        check_tokens(state.transcript.tokens, runtime.config.n_vocab)
        options, shifts = _options(extra["options"], defaults), bool(extra["context_shift"])
    except BaseException as error:
        session.close()
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)):
            raise SessionFileError(path, f"what it says of the conversation can't be understood: {error}") from error
        raise
    if not session.n_tokens:
        session.close()
        return SavedConversation(state, options, shifts, None)
    return SavedConversation(state, options, shifts, session)


def _options(saved: dict[str, Any], defaults: DefaultSampling) -> ChatOptions:
    options = dict(saved)
    if "logit_bias" in options:
        options["logit_bias"] = {int(token): float(bias) for token, bias in options["logit_bias"]}
    checked = check_options(cast(ChatOptions, options), ChatOptions)
    make_request(checked, defaults, (), continues_text=False)
    return checked
