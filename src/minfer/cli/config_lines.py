"""A `ModelConfig` as lines of text: what holds for the whole model, then each kind of layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from minfer.models import ModelConfig

_INDENT = "  "


def config_lines(config: ModelConfig) -> Iterator[str]:
    """One line a field; fields of what is nested are indented. Layers that are alike are shown once."""
    for field in fields(config):
        if field.name == "layers":
            yield f"{_INDENT}n_layers = {config.n_layers}"
        else:
            yield from _lines(field.name, getattr(config, field.name), _INDENT)
    for layer in dict.fromkeys(config.layers):
        alike = [index for index, other in enumerate(config.layers) if other == layer]
        yield from _lines(f"layers {_ranges(alike)}", layer, _INDENT)


def _lines(name: str, value: object, indent: str) -> Iterator[str]:
    if not is_dataclass(value):
        yield f"{indent}{name} = {_shown(value)}"
        return
    yield f"{indent}{name}: {type(value).__name__}"
    for field in fields(value):
        yield from _lines(field.name, getattr(value, field.name), indent + _INDENT)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _ranges(indices: Sequence[int]) -> str:
    """[0, 1, 2, 4] as `0-2, 4`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
