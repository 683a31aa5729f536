"""minfer chat: a conversation at a terminal, or over a pipe."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer
from rich.console import Console

import minfer
from minfer.cli.chat_commands import COMMANDS, summary
from minfer.cli.chat_input import Input, LineInput
from minfer.cli.chat_loop import Chat
from minfer.cli.chat_store import ChatStore
from minfer.cli.console import EXIT_ERROR, Spinner, open_model, reports_errors
from minfer.cli.options import (
    BackendOption,
    CacheTypeOption,
    ChatTemplateOption,
    ContextOption,
    ModelArgument,
    ModelOption,
    StopOption,
    SystemOption,
    ThreadsOption,
    chosen_model,
)
from minfer.cli.parameters import token_limit
from minfer.cli.sampling_options import with_sampling_options
from minfer.engine import ChatOptions, Conversation, Model
from minfer.errors import ParameterError
from minfer.settings import read_settings


@reports_errors
@with_sampling_options
def chat(
    model: ModelArgument = None,
    system: SystemOption = None,
    load: Annotated[
        str | None,
        typer.Option(
            "--load", "--resume", help="Go on with a conversation that was saved: a name, or a path.", metavar="NAME"
        ),
    ] = None,
    continues: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last conversation with this model.")
    ] = False,
    context_shift: Annotated[
        bool | None,
        typer.Option(
            "--context-shift/--no-context-shift",
            help="When the context is full, drop the oldest turns after the system prompt.",
            show_default="on",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", "-n", help="The longest answer; by default (or with -1) what the context holds."),
    ] = None,
    stop: StopOption = None,
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking", help="Whether models that can think before an answer do.", show_default=False
        ),
    ] = None,
    history: Annotated[
        bool,
        typer.Option("--history/--no-history", help="Keep what is entered, and save the conversation as it goes on."),
    ] = True,
    model_option: ModelOption = None,
    n_ctx: ContextOption = None,
    threads: ThreadsOption = None,
    backend: BackendOption = None,
    cache_type: CacheTypeOption = None,
    chat_template: ChatTemplateOption = None,
    *,
    sampling: dict[str, Any],
) -> None:
    """Talk with a model.

    At a terminal, /help lists the commands. Over a pipe every line is a message, and only answers go to stdout.

    Examples:

        minfer chat

        minfer chat ./model.gguf

        minfer chat --continue

        printf 'Name a colour.\\nAnd another.\\n' | minfer chat --temperature 0
    """
    if load is not None and continues:
        raise ParameterError("--load and --continue each name a conversation: use one of them")
    options: dict[str, Any] = dict(sampling)
    if stop:
        options["stop"] = stop
    if thinking is not None:
        options["template_variables"] = {"enable_thinking": thinking}
    spinner = Spinner("opening the model")
    try:
        name = chosen_model(model, model_option)
        with open_model(name, n_ctx, threads, backend, cache_type, chat_template, spinner) as loaded:
            if max_tokens is not None:
                options["max_tokens"] = token_limit(max_tokens, loaded.n_ctx)
            loaded.tokenizer.apply_template(
                [{"role": "user", "content": "Hello"}]
            )  # a model that can't chat says so now
            store = ChatStore(read_settings().cache_dir, loaded.fingerprint)
            with _conversation(loaded, store, load, continues, cast(ChatOptions, options)) as conversation:
                if system is not None:
                    conversation.set_system(system)
                if context_shift is not None:
                    conversation.context_shift = context_shift
                spinner.stop()
                _talk(loaded, conversation, store, keeps=history)
    finally:
        spinner.stop()


def _conversation(
    model: Model, store: ChatStore, load: str | None, continues: bool, options: ChatOptions
) -> Conversation:
    if continues:
        latest = store.latest()
        if latest is None:
            raise ParameterError("there is no earlier conversation with this model; leave --continue out to start one")
        return model.load_conversation(latest, **options)
    if load is not None:
        return model.load_conversation(store.source(load), **options)
    options.setdefault("max_tokens", model.n_ctx)
    return model.conversation(**options)


def _talk(model: Model, conversation: Conversation, store: ChatStore, *, keeps: bool) -> None:
    is_interactive = sys.stdin.isatty()
    chat = Chat(model, conversation, store, is_interactive=is_interactive, saves=is_interactive and keeps)
    source = _open_input(store if keeps else None)
    if is_interactive:
        chat.say(f"minfer {minfer.__version__}, {model.name}, a context of {model.n_ctx} tokens")
        if any(message["role"] != "system" for message in conversation.messages):
            chat.say(f"going on with {summary(chat)}")
        chat.say("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    try:
        chat.run(source)
    finally:
        chat.conversation.close()
    if chat.has_failed and not is_interactive:
        raise typer.Exit(EXIT_ERROR)
    if is_interactive and chat.is_saved:
        chat.say("`minfer chat --continue` goes on with this conversation.")


def _open_input(store: ChatStore | None) -> Input:
    """The input for what stdin is: a terminal that can move its cursor, one that can't, or no terminal at all."""
    if not sys.stdin.isatty() or Console(stderr=True).is_dumb_terminal:
        return LineInput(shows_prompt=sys.stdin.isatty())
    from minfer.cli.line_editor import TerminalInput  # takes a tenth of a second, which no other verb should pay

    return TerminalInput(store, {name: command.words for name, command in COMMANDS.items()})
