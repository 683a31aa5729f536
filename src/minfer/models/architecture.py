"""What an architecture is: how its metadata are read, and how its graph is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minfer.graph import Graph
from minfer.models.blocks import decoder
from minfer.models.config import ModelConfig
from minfer.models.declaration import Declaration
from minfer.models.keys import Keys


@dataclass(frozen=True)
class Architecture:
    """One architecture, by its name in `general.architecture`."""

    name: str
    read: Callable[[Keys], ModelConfig]
    declare: Callable[[Declaration], Graph] = decoder
    """the shared decoder does for most: what differs between them is in the configuration"""
