"""The command `minfer`: one file a verb."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from minfer.cli.chat import chat
from minfer.cli.console import ends_plainly, write_text
from minfer.cli.inspect import inspect
from minfer.cli.models import models
from minfer.cli.prompt_argument import check_verb
from minfer.cli.run import run
from minfer.cli.serve import serve
from minfer.cli.streams import repair_standard_streams
from minfer.version import __version__


class _Verbs(TyperGroup):
    """The verbs; what stands in the place of one is told how it is meant."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None:
            check_verb(cmd_name)
        return command


app = typer.Typer(
    name="minfer",
    cls=_Verbs,
    help="A local LLM inference engine in Python: opens a GGUF file and answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(context_settings={"allow_extra_args": True})(run)  # which says itself what is wrong with them
app.command()(chat)
app.command()(serve)
app.command()(inspect)
app.command()(models)


def _show_version(wanted: bool) -> None:
    if wanted:
        write_text(f"minfer {__version__}", "\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """A local LLM inference engine in Python: opens a GGUF file and answers."""


def main() -> None:
    """The entry point."""
    repair_standard_streams()
    with ends_plainly():
        try:
            app()
        finally:
            sys.stdout.flush()  # at exit, Python would complain in its own way
