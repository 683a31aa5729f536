"""Logging of the server: requests as lines of JSON, the rest as plain lines; all on stderr."""

from __future__ import annotations

import logging
import sys

from minfer.serve.access_log import ACCESS_LOGGER


def configure_logging(*, log_requests: bool) -> None:
    """Sends the server's log to stderr. For a program that is a server and nothing else."""
    _send(logging.getLogger(ACCESS_LOGGER), "%(message)s", logging.INFO if log_requests else logging.WARNING)
    for name in ("minfer.serve", "uvicorn.error"):
        _send(logging.getLogger(name), "%(levelname)s: %(message)s", logging.WARNING)


def _send(logger: logging.Logger, form: str, level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(form))
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False
