"""The HTTP server: OpenAI's API over an engine that computes many requests together.

`app` joins the routes and the layers around them; `chat` and `completions` answer, `streaming` sends, `submission`
leads from the engine's thread to the event loop. `engine_protocol` is all that the server knows of an engine.
"""

from __future__ import annotations

from minfer.serve.app import create_app
from minfer.serve.config import Limits, ServerConfig
from minfer.serve.lifecycle import Server, listen
from minfer.serve.logs import configure_logging

__all__ = ["Limits", "Server", "ServerConfig", "configure_logging", "create_app", "listen"]
