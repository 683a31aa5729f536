"""minfer inspect: what is in a model file, and the graph that it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from minfer.backends import BACKEND_NAMES, Backend, make_backend
from minfer.cli.config_lines import config_lines
from minfer.cli.console import ProgressBar, reports_errors, write_text
from minfer.cli.fetching import fetch_model
from minfer.cli.options import ModelArgument, ModelOption, chosen_model
from minfer.cli.reports import sampling_line
from minfer.engine import CACHE_TYPES, default_sampling, parse_cache_type, position_bytes
from minfer.engine.runtime import step_bounds
from minfer.errors import ParameterError, did_you_mean
from minfer.gguf import GGUFArray, GGUFFile, open_gguf
from minfer.graph import Graph, to_dot, to_json, to_text
from minfer.models import ModelConfig, adapter_description, declare_graph, read_config
from minfer.passes import PIPELINE, PassContext, run_passes
from minfer.settings import read_settings

_N_CTX_FOR_PLAN = 2048
_MAX_SHOWN = 76


class GraphFormat(StrEnum):
    """How a graph is shown."""

    TEXT = "text"
    DOT = "dot"
    JSON = "json"


@reports_errors
def inspect(
    model: ModelArgument = None,
    graph: Annotated[bool, typer.Option("--graph", help="Show the graph, as built and after each pass.")] = False,
    after: Annotated[
        str | None,
        typer.Option(help="With --graph: only after this pass (`built` for before any).", show_default=False),
    ] = None,
    graph_format: Annotated[
        GraphFormat, typer.Option("--format", help="With --graph: text, dot (Graphviz) or json.")
    ] = GraphFormat.TEXT,
    backend: Annotated[str | None, typer.Option(help="With --graph: the backend to lower for.")] = None,
    model_option: ModelOption = None,
) -> None:
    """Show a model file: metadata, tensors, parameters, KV bytes a position; with --graph the compute graph.

    Examples:

        minfer inspect default

        minfer inspect default --graph --after plan_memory

        minfer inspect default --graph --after fuse_add_norm --format dot | dot -Tsvg > graph.svg
    """
    if not graph and (after is not None or graph_format is not GraphFormat.TEXT):
        raise ParameterError("--after and --format go with --graph")
    settings = read_settings()
    with open_gguf(fetch_model(chosen_model(model, model_option), ProgressBar())) as file:
        if graph:
            _, built = declare_graph(file, parse_cache_type(settings.cache_type))
            _show_graph(
                built, after, graph_format, make_backend(backend or settings.backend or BACKEND_NAMES[0], settings)
            )
        else:
            _show_file(file)


def _show_file(file: GGUFFile) -> None:
    lines = [f"{path} ({path.stat().st_size:,} bytes)" for path in file.paths]
    lines.append(f"GGUF v{file.version}, {len(file.metadata)} metadata keys, {len(file.tensors)} tensors")
    adapter = adapter_description(file)
    if adapter is not None:
        lines.append(f"This is {adapter}: it changes a model, and is none by itself.")
    lines += ["", "metadata"]
    lines += [
        f"  {key} ({file.metadata.value_type(key).name.lower()}) = {_shown(file.metadata[key])}"
        for key in file.metadata
    ]
    lines += ["", "tensors"]
    width = max((len(name) for name in file.tensors), default=0)
    for name, info in file.tensors.items():
        shape = " x ".join(str(n) for n in info.shape)
        lines.append(f"  {name:<{width}}  {info.ggml_type.name:<8} {shape:<16} {info.n_bytes:>14,} bytes")
    lines += ["", *_totals(file)]
    lines += ["", "sampling where nothing else is said", f"  {sampling_line(default_sampling(file))}"]
    write_text("\n".join(lines), "\n")
    if file.tensors and adapter is None:
        declare_graph(file)  # refuses tensors that would be left out
        write_text("\n".join(["", *_model_lines(*read_config(file))]), "\n")


def _totals(file: GGUFFile) -> list[str]:
    by_type: dict[str, tuple[int, int]] = {}
    for info in file.tensors.values():
        n_values, n_bytes = by_type.get(info.ggml_type.name, (0, 0))
        by_type[info.ggml_type.name] = (n_values + info.n_values, n_bytes + info.n_bytes)
    lines = ["totals"]
    for name, (n_values, n_bytes) in sorted(by_type.items(), key=lambda item: -item[1][1]):
        lines.append(
            f"  {name:<8} {n_values:>16,} values {n_bytes:>16,} bytes ({8 * n_bytes / n_values:.2f} bits a value)"
        )
    n_values = sum(n for n, _ in by_type.values())
    n_bytes = sum(n for _, n in by_type.values())
    return [*lines, f"  {'all':<8} {n_values:>16,} values {n_bytes:>16,} bytes"]


def _model_lines(config: ModelConfig, keys: Sequence[str]) -> list[str]:
    lines = ["model", *config_lines(config)]
    for name in CACHE_TYPES:
        n_bytes = position_bytes(config, parse_cache_type(name))
        if n_bytes is not None:
            lines.append(f"  KV bytes a position, {name} = {n_bytes:,}")
    return [*lines, "", "read from the metadata", *(f"  {key}" for key in keys)]


def _show_graph(built: Graph, after: str | None, graph_format: GraphFormat, backend: Backend) -> None:
    names = ["built", *(name for name, _ in PIPELINE)]
    if after is not None and after not in names:
        raise ParameterError(f"there is no pass {after!r}{did_you_mean(after, names)}; there are {', '.join(names)}")
    context = PassContext((backend,), step_bounds(_N_CTX_FOR_PLAN))
    if graph_format is not GraphFormat.TEXT and after is None:
        after = names[-1]
    for name, graph in run_passes(built, context):
        if after is None:
            write_text(f"== {name}: {len(graph.nodes)} nodes", "\n")
        if after in (None, name):
            write_text(_formatted(graph, graph_format), "\n")


def _formatted(graph: Graph, graph_format: GraphFormat) -> str:
    match graph_format:
        case GraphFormat.TEXT:
            return to_text(graph)
        case GraphFormat.DOT:
            return to_dot(graph)
        case GraphFormat.JSON:
            return to_json(graph)


def _shown(value: object) -> str:
    if isinstance(value, GGUFArray):
        first = ", ".join(repr(value[i]) for i in range(min(4, len(value))))
        more = ", ..." if len(value) > 4 else ""
        return _cut(f"{value.element_type.name.lower()}[{len(value):,}] [{first}{more}]")
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"
