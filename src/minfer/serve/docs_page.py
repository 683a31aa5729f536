"""/docs: the API's schema as a page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jinja2
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from minfer.serve.page_files import CONTENT_SECURITY_POLICY, read_page_file

router = APIRouter(include_in_schema=False)

_LIMITS: Final = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} entries",
}


@dataclass(frozen=True)
class Field:
    """A row of a table."""

    name: str
    type: str
    note: str


@dataclass(frozen=True)
class Operation:
    """One endpoint."""

    method: str
    path: str
    description: str
    request: str | None
    responses: tuple[tuple[str, str], ...]
    """statuses, and the type of their body"""


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The page."""
    schema = request.app.openapi()
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(read_page_file("docs.html").decode())
    types = {
        name: (part.get("description", ""), list(_fields(part)))
        for name, part in schema["components"]["schemas"].items()
    }
    html = template.render(version=schema["info"]["version"], operations=list(_operations(schema)), types=types)
    return HTMLResponse(html, headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})


def _operations(schema: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            statuses: dict[str, list[str]] = {}
            for status, response in operation["responses"].items():
                answer = response.get("content", {}).get("application/json", {}).get("schema", {})
                statuses.setdefault(_name(answer), []).append(status)
            responses = tuple((", ".join(those), name) for name, those in statuses.items())
            request = None if body is None else _name(body)
            yield Operation(method.upper(), path, operation.get("description", ""), request, responses)


def _fields(part: Mapping[str, Any]) -> Iterator[Field]:
    required = part.get("required", ())
    for name, schema in part.get("properties", {}).items():
        notes = ["required"] if name in required else []
        notes += [text for text in (*_limits(schema), schema.get("description", "")) if text]
        if schema.get("default") is not None:
            notes.append(f"default {schema['default']}")
        yield Field(name, _name(schema), "; ".join(notes))


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for choice in (schema, *schema.get("anyOf", ())):
        for key, text in _LIMITS.items():
            if key in choice:
                yield text.format(choice[key])


def _name(schema: Mapping[str, Any]) -> str:
    """A schema in one line."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(_name(choice) for choice in choices if choice.get("type") != "null"))
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " | ".join(map(repr, schema["enum"]))
    match schema.get("type"):
        case "array":
            items = schema.get("items") or {"oneOf": schema.get("prefixItems", [])}
            return f"list of {_name(items)}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of {_name(schema['additionalProperties'])}"
        case None:
            return "any"
        case kind:
            return str(kind)
