"""The hook through which a step can be watched. With no observer a step does no work for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True)
class NodeEvent:
    """One node has run. `outputs` are (value name, array) pairs; the arrays are views, to be copied if kept."""

    node: str
    op: str
    layer: int | None
    backend: str
    outputs: Sequence[tuple[str, NDArray[Any]]]
    start_s: float
    """on the clock of `time.perf_counter`"""
    duration_s: float


class Observer(Protocol):
    """Something that watches steps."""

    def begin_step(self, n_tokens: int, first_position: int) -> None:
        """A step begins."""
        ...

    def node_ran(self, event: NodeEvent) -> None:
        """A node has run."""
        ...

    def close(self) -> None:
        """No more steps."""
        ...
