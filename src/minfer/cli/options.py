"""Options that several verbs have, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from minfer.cli.console import UsageError
from minfer.cli.stdin import undecoded
from minfer.hub import DEFAULT_MODEL_NAME


def readable(texts: str | list[str] | None) -> str | list[str] | None:
    """For the text of an argument: passes it on if it is one.

    Raises:
        BadParameter: it has bytes that are no UTF-8.
    """
    for text in [texts] if isinstance(texts, str) else texts or []:
        wrong = undecoded(text)
        if wrong is not None:
            raise typer.BadParameter(f"it {wrong}")
    return texts


MODEL_HELP = (
    "A path, `default`, the name of a model in the cache (see `minfer models`), hf:owner/repo:file.gguf, or a name "
    "that `minfer models --available` lists."
)
MODEL_PANEL = "Model and cache"

ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help=MODEL_HELP, rich_help_panel=MODEL_PANEL, show_default=DEFAULT_MODEL_NAME),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="The model; the same as --model.", show_default=False),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--n-ctx", help="Positions of context; by default the model's own, up to 8192.", rich_help_panel=MODEL_PANEL
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Threads that compute.", rich_help_panel=MODEL_PANEL)
]
BackendOption = Annotated[
    str | None, typer.Option("--backend", help="The backend to run on.", rich_help_panel=MODEL_PANEL)
]
CacheTypeOption = Annotated[
    str | None,
    typer.Option(
        "--cache-type",
        help="Type of the KV cache: f16 (the default), f32 or q8_0; of keys and values apart: k:f16,v:q8_0.",
        rich_help_panel=MODEL_PANEL,
    ),
]
ChatTemplateOption = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        help="A chat template in place of the model's own: a file, or a name such as chatml, llama3 or gemma; a wrong "
        "name lists them all.",
        rich_help_panel=MODEL_PANEL,
        metavar="FILE_OR_NAME",
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End the answer before this text; may be repeated.", callback=readable),
]
SystemOption = Annotated[
    str | None, typer.Option("--system", "-s", help="A system message before the prompt.", callback=readable)
]


def chosen_model(argument: str | None, option: str | None) -> str:
    """The model that a verb is given, by its first argument or by --model.

    Raises:
        UsageError: both are given, and differ.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"two models are given, {argument} and --model {option}: leave one out")
    named = option if argument is None else argument
    return DEFAULT_MODEL_NAME if named is None else named
