"""How the server is set up: who may come, and how much they may ask for."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from minfer.errors import ParameterError

DEFAULT_PORT = 8080


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on single requests, and on how long the server waits for a client."""

    max_body_bytes: int = 8 * 2**20
    max_prompts: int = 32
    """prompts in one completions request; not more than the engine's queue holds"""
    max_samples: int = 16
    """`n`; not more than the engine computes together"""
    max_stop_strings: int = 16
    head_timeout_s: float = 30.0
    """for a connection to say what it wants"""
    idle_timeout_s: float = 75.0
    """for the next request on a connection; longer than clients keep one, so that they are the ones to close it"""
    body_timeout_s: float = 60.0
    """for the body to arrive"""
    send_timeout_s: float = 60.0
    """for a client to take a piece of a stream"""
    keep_alive_s: float = 15.0
    """after so long without news, a stream sends a comment, which finds out whether the client is still there"""
    drain_s: float = 30.0
    """for running requests to end when the server is told to stop"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ParameterError(f"{name} is {value!r}; it must be above 0")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything about the server but the engine.

    Raises:
        ParameterError: an API key that no client could send, or an origin that no browser sends.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 takes a free one"""
    api_keys: tuple[str, ...] = ()
    """one of them is asked for, where there are any"""
    cors_origins: tuple[str, ...] = ()
    """origins whose pages may call the API from a browser; none by default"""
    allowed_hosts: tuple[str, ...] = ()
    """host names, without port, that requests may be addressed to. Where there are none, a server on a loopback address
    takes the names of this machine, so that no page on the web reaches it by a name of its own, and another any"""
    model_aliases: tuple[str, ...] = ()
    """further names of the model, which are listed beside its own"""
    unlisted_names: tuple[str, ...] = ("default",)
    """names that the model answers to as well, and that no list of models shows"""
    takes_any_model_name: bool = False
    """whether the model answers to every name, for clients that can't be told the right one"""
    log_prompts: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ParameterError("an API key must be printable ASCII characters without spaces, and at least one")
        for origin in self.cors_origins:
            _check_origin(origin)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _check_origin(origin: str) -> None:
    if origin in ("*", "null"):
        return
    match = re.fullmatch(r"([a-z][a-z0-9+.-]*://)([^/?#@\s]+)(.*)", origin, re.IGNORECASE)
    sent = match and (match[1] + match[2]).lower()
    for scheme, port in (("http://", ":80"), ("https://", ":443")):
        if sent and sent.startswith(scheme):
            sent = sent.removesuffix(port)
    if sent != origin:
        hint = f"; this one is sent as {sent}" if sent else ""
        raise ParameterError(
            f"{origin!r} is no origin as browsers send it, such as http://localhost:3000 "
            f"(in lower case, without a path or the scheme's own port), or * for all, or null for pages in files{hint}"
        )
