"""The HTTP server: OpenAI's API over an engine that computes many requests together.

`app` joins the routes and the layers around them; `chat` and `completions` answer, `streaming` sends, `submission`
leads from the engine's thread to the event loop. `engine_protocol` is all that the server knows of an engine.
"""

from __future__ import annotations

from minfer.serve.app import create_app
from minfer.serve.config import Limits, ServerConfig

__all__ = ["Limits", "ServerConfig", "create_app"]
