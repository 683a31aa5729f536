"""The web application: routes and the layers around them."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from minfer.serve import chat, completions, docs_page, health, page_files, text_routes
from minfer.serve.access_log import Observed
from minfer.serve.auth import HostGuard, KeyGuard, served_names
from minfer.serve.config import ServerConfig
from minfer.serve.cors import Cors
from minfer.serve.errors import ErrorBoundary, install_error_handlers
from minfer.serve.head import HeadAsGet
from minfer.serve.metrics import Metrics
from minfer.serve.openapi import describe
from minfer.serve.state import ServerState
from minfer.version import __version__

_ROUTERS = (chat.router, completions.router, text_routes.router, health.router, docs_page.router, page_files.router)


def create_app(config: ServerConfig) -> FastAPI:
    """The application, as yet without an engine: `app.state.server.set_engine` gives it one.

    Until then, and when it is told to stop, it answers requests for text with 503.
    """
    state = ServerState(config, Metrics())
    app = FastAPI(
        title="minfer",
        version=__version__,
        summary="A local LLM inference engine: OpenAI's API, and more.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.server = state
    for router in _ROUTERS:
        app.include_router(router)
    describe(app)
    install_error_handlers(app)
    # The last to be added is the outermost.
    app.add_middleware(HeadAsGet)
    if config.api_keys:
        app.add_middleware(KeyGuard, keys=config.api_keys)
    names = served_names(config)
    if names is not None:
        app.add_middleware(HostGuard, names=names, takes_nameless=config.is_loopback)
    app.add_middleware(ErrorBoundary)
    if config.cors_origins:
        app.add_middleware(Cors, origins=config.cors_origins)
    endpoints = frozenset(route.path for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute))
    app.add_middleware(Observed, metrics=state.metrics, endpoints=endpoints)
    return app
