"""The commands of `minfer chat`: what starts with a slash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from minfer.cli.parameters import OTHER_NAMES, PARAMETERS, Kind, parse_value, shown_value, token_limit
from minfer.cli.reports import cache_line, stats_lines
from minfer.engine import DEFAULT_MAX_TOKENS, ChatOptions, sampling_params
from minfer.errors import ForeignFileError, ParameterError, did_you_mean

if TYPE_CHECKING:
    from minfer.cli.chat_loop import Chat

_SWITCHES: Mapping[str, bool] = MappingProxyType({"on": True, "off": False})
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "max_tokens": "the longest answer, in tokens; -1 is what the context holds",
        "stop": "end answers before this text; `none` for none",
        "context_shift": "on or off: drop the oldest turns when the context is full",
        "thinking": "on, off, or auto for what the chat template does by itself",
    }
)
_N_SHOWN = 60


@dataclass(frozen=True)
class Command:
    """A command: what may follow its name, what it does, and how."""

    arguments: str
    help: str
    run: Callable[[Chat, str], None]
    words: Sequence[str] = ()
    """first arguments that can be completed"""


def run_command(chat: Chat, entry: str) -> None:
    """Does what an entry that starts with a slash asks for.

    Raises:
        ParameterError: there is no such command, or what follows it makes no sense.
        MinferError: what the command does failed.
    """
    name, _, argument = entry.partition(" ")
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        meant = did_you_mean(name, COMMANDS)
        raise ParameterError(f"there is no command {name}{meant}; /help lists them, // sends text that starts with a /")
    argument = argument.strip()
    if argument and not command.arguments:
        raise ParameterError(f"{name} takes nothing after it, and there is {argument!r}")
    command.run(chat, argument)


def _help(chat: Chat, _: str) -> None:
    entries = [(f"{name} {command.arguments}".strip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in entries)
    chat.say("\n".join(f"  {usage:<{width}}  {text}" for usage, text in entries))
    chat.say('  Several lines: Alt-Enter, or """ before the first and """ after the last one.')
    chat.say("  Ctrl-C stops an answer and keeps what there is of it. Ctrl-D leaves.")


def _clear(chat: Chat, _: str) -> None:
    chat.conversation.clear()
    chat.start_new_file()
    chat.say("(a new conversation)" if chat.conversation.system is None else "(a new conversation; same system prompt)")


def _regenerate(chat: Chat, _: str) -> None:
    chat.regenerate()


def _undo(chat: Chat, _: str) -> None:
    question = chat.conversation.undo()[0]["content"]
    chat.save_automatically()
    chat.say(f"(taken back: {_shortened(question)})")


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.conversation.set_system(None if text == "none" else text)
        chat.save_automatically()
    chat.say(f"(system prompt: {chat.conversation.system or 'none'})")


def _save(chat: Chat, name: str) -> None:
    target = chat.store.target(name)
    try:
        chat.conversation.save(target)
    except ForeignFileError:
        if not chat.confirms(f"{target} is not a saved conversation. Replace it?"):
            raise
        chat.conversation.save(target, overwrite=True)
    chat.say(f"(saved to {target})")


def _load(chat: Chat, name: str) -> None:
    chat.change_conversation(chat.model.load_conversation(chat.store.source(name)))
    chat.say(f"(loaded: {summary(chat)})")


def _set(chat: Chat, text: str) -> None:
    name, _, value = text.partition(" ")
    name, value = name.replace("-", "_"), value.strip()
    name = OTHER_NAMES.get(name, name)
    if not name:
        chat.say("\n".join(f"  {each} = {_current(chat, each)}" for each in (*_SETTINGS, *PARAMETERS)))
        return
    if name not in _SETTINGS and name not in PARAMETERS:
        meant = did_you_mean(name, (*_SETTINGS, *PARAMETERS))
        raise ParameterError(f"there is no parameter {name!r}{meant}; /set lists them")
    if not value:
        about = _SETTINGS[name] if name in _SETTINGS else PARAMETERS[name].help
        chat.say(f"{name} = {_current(chat, name)}  ({about})")
        return
    _change(chat, name, value)
    chat.say(f"({name} = {_current(chat, name)})")


def _change(chat: Chat, name: str, value: str) -> None:
    conversation = chat.conversation
    match name:
        case "context_shift":
            conversation.context_shift = _switch(name, value)
        case "thinking":
            variables = dict(conversation.options.get("template_variables", {}))
            variables.pop("enable_thinking", None)
            if value != "auto":
                variables["enable_thinking"] = _switch(name, value, "auto")
            conversation.set_options(template_variables=variables)
        case "stop":
            conversation.set_options(stop=() if value == "none" else value)
        case "max_tokens":
            conversation.set_options(max_tokens=token_limit(_integer(name, value), chat.model.n_ctx))
        case _:
            parameter = PARAMETERS[name]
            texts = value.split() if parameter.kind is Kind.BIASES else [value]
            conversation.set_options(**cast(ChatOptions, {name: parse_value(parameter, texts)}))


def _current(chat: Chat, name: str) -> str:
    options: dict[str, Any] = dict(chat.conversation.options)
    match name:
        case "context_shift":
            return "on" if chat.conversation.context_shift else "off"
        case "thinking":
            thinking = options.get("template_variables", {}).get("enable_thinking")
            return "auto" if thinking is None else "on" if thinking else "off"
        case "stop":
            stop = options.get("stop", ())
            return ", ".join(map(repr, (stop,) if isinstance(stop, str) else stop)) or "none"
        case "max_tokens":
            return str(options.get("max_tokens", DEFAULT_MAX_TOKENS))
        case _:
            return shown_value(getattr(sampling_params(options, chat.model.default_sampling), name))


def _stats(chat: Chat, _: str) -> None:
    conversation, model = chat.conversation, chat.model
    totals = conversation.stats
    chat.say(f"context: {conversation.n_tokens} of {model.n_ctx} tokens, {len(conversation.messages)} messages")
    if conversation.n_forgotten:
        chat.say(f"dropped from it: {totals.n_dropped_tokens} tokens, {conversation.n_forgotten} messages")
    if chat.last is None:
        chat.say(cache_line(model))
    else:
        chat.say("\n".join(stats_lines(model, chat.last.result, chat.last.stages, chat.last.sampling)))
        chat.say(
            f"all answers: {totals.n_prefill_tokens} tokens read, {totals.n_cached_tokens} from the cache, "
            f"{totals.n_decode_tokens} decoded"
        )


def _tokens(chat: Chat, text: str) -> None:
    tokenizer, conversation = chat.model.tokenizer, chat.conversation
    if text:
        ids = tokenizer.tokenize(text)
        chat.say(" ".join(f"{token}={tokenizer.detokenize([token])!r}" for token in ids))
        chat.say(f"({len(ids)} tokens)")
        return
    n_system = int(conversation.system is not None)
    for index, message in enumerate(conversation.messages):
        n_tokens = len(tokenizer.tokenize(message["content"]))
        is_gone = n_system <= index < n_system + conversation.n_forgotten
        gone = "  (no longer in the context)" if is_gone else ""
        chat.say(f"  {n_tokens:>6}  {message['role']}: {_shortened(message['content'])}{gone}")
    n_left = chat.model.n_ctx - conversation.n_tokens
    chat.say(f"({conversation.n_tokens} tokens in the context, with those of the template; {n_left} are left)")


def _exit(chat: Chat, _: str) -> None:
    chat.is_over = True


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "/help": Command("", "Show this.", _help),
        "/clear": Command("", "Start a new conversation with the same system prompt.", _clear),
        "/regen": Command("", "Answer the last message again.", _regenerate),
        "/undo": Command("", "Take the last message and its answer back.", _undo),
        "/system": Command("[TEXT]", "Show or set the system prompt; `none` removes it.", _system, ("none",)),
        "/save": Command("[NAME]", "Save the conversation, under a name or to a path.", _save),
        "/load": Command("NAME", "Go on with a saved conversation.", _load),
        "/set": Command("[PARAM [VALUE]]", "Show or change parameters.", _set, (*_SETTINGS, *PARAMETERS)),
        "/stats": Command("", "Counts and speed, the sampling pipeline, the cache.", _stats),
        "/tokens": Command("[TEXT]", "Tokens in the context by message, or those of a text.", _tokens),
        "/exit": Command("", "Leave.", _exit),
    }
)
_ALIASES: Mapping[str, str] = MappingProxyType({"/?": "/help", "/quit": "/exit", "/bye": "/exit"})


def summary(chat: Chat) -> str:
    """What a conversation is about, in a line."""
    said = [message for message in chat.conversation.messages if message["role"] != "system"]
    if not said:
        return "an empty conversation"
    n_turns = sum(message["role"] == "user" for message in said)
    last = f", ending with {said[-1]['role']}: {_shortened(said[-1]['content'])}"
    return f"{n_turns} turn{'s' if n_turns != 1 else ''}, {chat.conversation.n_tokens} tokens{last}"


def _switch(name: str, value: str, *others: str) -> bool:
    if value not in _SWITCHES:
        raise ParameterError(f"{name} is {value!r}; it must be {', '.join((*_SWITCHES, *others))}")
    return _SWITCHES[value]


def _integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ParameterError(f"{name} is {value!r}; it must be an integer") from None


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _N_SHOWN else f"{line[: _N_SHOWN - 3]}..."
