"""/ and its files: the chat page, as it lies in the package."""

from __future__ import annotations

import importlib.resources
from typing import Final

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A page may load its own files and call its own server, and nothing else; no script or style within HTML runs."""
_TYPES: Final = {
    "index.html": "text/html",
    "style.css": "text/css",
    "page.js": "text/javascript",
    "api.js": "text/javascript",
    "markup.js": "text/javascript",
    "store.js": "text/javascript",
    "tokens.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

router = APIRouter(include_in_schema=False)


def read_page_file(name: str) -> bytes:
    """A file of the page."""
    return importlib.resources.files("minfer.serve").joinpath("page", name).read_bytes()


@router.get("/")
async def index() -> Response:
    """The chat page."""
    return _file("index.html")


@router.get("/page/{name}")
async def page_file(name: str) -> Response:
    """A file that the page needs."""
    if name not in _TYPES:
        raise HTTPException(404)
    return _file(name)


def _file(name: str) -> Response:
    headers = {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(read_page_file(name), media_type=_TYPES[name], headers=headers)
