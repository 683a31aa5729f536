"""Options for all sampling parameters, for every verb that generates."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer

from minfer.cli.options import readable
from minfer.cli.parameters import DEFAULTS, PARAMETERS, Kind, Parameter, parse_value, shown_value

_TYPES: dict[Kind, Any] = {
    Kind.REAL: float | None,
    Kind.INTEGER: int | None,
    Kind.TEXTS: list[str] | None,
    Kind.NAMES: str | None,
    Kind.BIASES: list[str] | None,
}

_USUALLY_RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""A file may recommend some more, which few do."""


def with_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options; they come as its keyword argument `sampling`, a dict of those that were given."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {name: given.pop(name) for name in PARAMETERS}
        sampling = {name: _value(PARAMETERS[name], value) for name, value in values.items() if value is not None}
        command(**given, sampling=sampling)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "sampling"
    ]
    parameters = [*own, *_options()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options() -> Iterator[inspect.Parameter]:
    for name, parameter in PARAMETERS.items():
        default = DEFAULTS[name]
        option = typer.Option(
            *parameter.flags,
            callback=readable if parameter.kind is Kind.TEXTS else None,
            help=parameter.help,
            rich_help_panel=parameter.panel,
            show_default=_shown_default(name, default) if default not in (None, {}) else False,
        )
        annotation: Any = Annotated.__class_getitem__((_TYPES[parameter.kind], option))  # type: ignore[attr-defined]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _shown_default(name: str, default: object) -> str:
    shown = shown_value(default)
    return f"the model's own, or else {shown}" if name in _USUALLY_RECOMMENDED else shown


def _value(parameter: Parameter, given: object) -> object:
    texts = given if isinstance(given, list) else [str(given)]
    return parse_value(parameter, texts)
