"""Options that several verbs have, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

MODEL_HELP = (
    "A path, `default`, the name of a model in the cache (see `minfer models`), hf:owner/repo:file.gguf, or a name "
    "that `minfer models --available` lists."
)
MODEL_PANEL = "Model and cache"

ModelOption = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP, rich_help_panel=MODEL_PANEL)]
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
StopOption = Annotated[
    list[str] | None, typer.Option("--stop", help="End the answer before this text; may be repeated.")
]
SystemOption = Annotated[str | None, typer.Option("--system", "-s", help="A system message before the prompt.")]
