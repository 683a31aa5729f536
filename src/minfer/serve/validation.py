"""What is wrong with a request's body, in words: the field, the value met, and what is accepted."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from minfer.sampling.names import suggestion
from minfer.serve.errors import ApiError, invalid

_N_SHOWN: Final = 60
Path = Sequence[int | str]
_Words = Callable[[Mapping[str, Any]], str]

_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "string_type": "a string",
        "int_type": "an integer",
        "int_from_float": "an integer",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "a list",
        "tuple_type": "a list",
        "dict_type": "an object",
        "model_type": "an object",
        "model_attributes_type": "an object",
    }
)
"""What pydantic's errors about types ask for."""
_BOUNDS: Final[Mapping[str, _Words]] = MappingProxyType(
    {
        "literal_error": lambda c: c["expected"],
        "finite_number": lambda c: "finite",
        "greater_than_equal": lambda c: f"at least {c['ge']:g}",
        "greater_than": lambda c: f"above {c['gt']:g}",
        "less_than_equal": lambda c: f"at most {c['le']:g}",
        "less_than": lambda c: f"below {c['lt']:g}",
        "int_parsing_size": lambda c: "an integer of fewer digits",
        "string_too_short": lambda c: f"at least {_count(c['min_length'], 'character')} long",
        "string_too_long": lambda c: f"at most {_count(c['max_length'], 'character')} long",
        "too_short": lambda c: f"of at least {_count(c['min_length'], 'entry', 'entries')}",
        "too_long": lambda c: f"of at most {_count(c['max_length'], 'entry', 'entries')}",
        "value_error": lambda c: str(c["error"]).removeprefix("must be "),
    }
)
"""What its other errors ask for, from their context."""


def validation_error(error: RequestValidationError, body_type: type[BaseModel] | None) -> ApiError:
    """The first of the things that pydantic found, with the field's name as the client knows it.

    Args:
        body_type: what the body should have been, to find the name that may have been meant by an unknown one.
    """
    errors = error.errors()
    first = _most_telling(errors, error.body)
    kind, path, context = first["type"], _path(first, error.body), first.get("ctx", {})
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _about_tag(path, kind, context)
    param = ".".join(map(str, path)) or None
    named = param or "the body"
    match kind:
        case "extra_forbidden":
            hint = suggestion(str(path[-1]), _fields_at(body_type, path[:-1]))
            return invalid(f"{named}: unknown field, or one that is not supported{hint}", param, "unknown_parameter")
        case "missing":
            return invalid(f"{named}: missing; a value is required", param, "missing_required_parameter")
        case "none_required":
            return invalid(f"{named}: not supported; leave it out, or let it be null", param, "unsupported")
    met = shown(first["input"])
    if kind in _TYPES:
        # Where several types are accepted, each has complained.
        same = [other["type"] for other in errors if other["type"] in _TYPES and _path(other, error.body) == path]
        accepted = " or ".join(dict.fromkeys(_TYPES[other] for other in same))
        return invalid(f"{named}: {met}; it must be {accepted}", param, "invalid_type")
    if kind in _BOUNDS:
        return invalid(f"{named}: {met}; it must be {_BOUNDS[kind](context)}", param, "invalid_value")
    return invalid(f"{named}: {met}; {first['msg'][:1].lower()}{first['msg'][1:]}", param, "invalid_value")


def shown(value: object) -> str:
    """A value of JSON in a few words."""
    match value:
        case [] | {}:
            return "an empty list" if isinstance(value, list) else "an empty object"
        case "":
            return "an empty string"
        case list():
            return f"a list of {_count(len(value), 'entry', 'entries')}"
        case dict():
            return "an object"
        case str() if len(value) > _N_SHOWN:
            return f"a string of {len(value)} characters"
    return f"{json.dumps(value, ensure_ascii=False, default=repr)[:_N_SHOWN]}{_type_note(value)}"


def _type_note(value: object) -> str:
    return " (a string)" if isinstance(value, str) else ""


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _about_tag(path: Path, kind: str, context: Mapping[str, Any]) -> ApiError:
    """The field that tells what an object is, such as a message's role, is missing or has an unknown value."""
    param = ".".join(map(str, (*path, context["discriminator"].strip("'"))))
    if kind == "union_tag_not_found":
        return invalid(f"{param}: missing; a value is required", param, "missing_required_parameter")
    message = f"{param}: {shown(context['tag'])}; it must be one of {context['expected_tags']}"
    return invalid(message, param, "invalid_value")


def _most_telling(errors: Sequence[Mapping[str, Any]], body: object) -> Mapping[str, Any]:
    """Each branch of a union may complain; the one that got furthest into the body is the one that was meant."""

    def progress(error: Mapping[str, Any]) -> tuple[int, int, int]:
        path, kind = _path(error, body), error["type"]
        indices = [step for step in path if isinstance(step, int)]
        # A wrong name explains what is missing, and a wrong value what is too much.
        weight = {"missing": 1, "extra_forbidden": 2}.get(kind, 0 if kind in _TYPES else 3)
        return len(path), weight, indices[-1] if indices else -1

    return max(errors, key=progress)


def _path(error: Mapping[str, Any], body: object) -> list[int | str]:
    """The part of pydantic's location that leads through the body: branches of unions are named in it too."""
    location = error["loc"][1:]
    path: list[int | str] = []
    current = body
    for index, step in enumerate(location):
        if (isinstance(current, dict) and step in current) or (
            isinstance(current, list) and isinstance(step, int) and step < len(current)
        ):
            current = current[step]
        elif error["type"] != "missing" or index < len(location) - 1:
            continue  # the name of a branch
        path.append(step)
    return path


def _fields_at(body_type: type[BaseModel] | None, path: Path) -> set[str]:
    """The fields of the objects that may stand at a place in the body."""
    models = [] if body_type is None else [body_type]
    for step in path:
        if isinstance(step, str):
            fields = [model.model_fields[step] for model in models if step in model.model_fields]
            models = [found for field in fields for found in _models_in(field.annotation)]
    return {name for model in models for name in model.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in _models_in(part)]
