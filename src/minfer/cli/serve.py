"""minfer serve: the model over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import minfer
from minfer.cli.console import ProgressBar, reports_errors
from minfer.cli.fetching import fetch_model
from minfer.cli.options import (
    BackendOption,
    CacheTypeOption,
    ChatTemplateOption,
    ContextOption,
    ModelArgument,
    ModelOption,
    ThreadsOption,
    chosen_model,
)
from minfer.engine import BatchEngine
from minfer.engine.runtime import MAX_OUTPUTS_PER_STEP
from minfer.errors import ParameterError

_PARALLEL = 8
_QUEUE = 64
_SWITCH_S = 0.0002
_ACCESS_PANEL = "Who may come"


@reports_errors
def serve(
    model: ModelArgument = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is all of them.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8080,
    parallel: Annotated[
        int, typer.Option(help="Answers that are computed together at most.", min=1, max=MAX_OUTPUTS_PER_STEP)
    ] = (_PARALLEL),
    queue: Annotated[int, typer.Option(help="Requests that may wait; more are refused.", min=0)] = _QUEUE,
    alias: Annotated[
        list[str] | None, typer.Option(help="A further name of the model; may be repeated.", show_default=False)
    ] = None,
    any_model_name: Annotated[
        bool,
        typer.Option("--any-model-name", help="Answer to every name, for clients that can't be told the right one."),
    ] = False,
    drain_s: Annotated[
        float, typer.Option("--drain", help="Seconds that running requests get when the server is told to stop.")
    ] = 30.0,
    log_requests: Annotated[
        bool, typer.Option("--log-requests/--no-log-requests", help="Write a line of JSON to stderr for each request.")
    ] = True,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write what was asked into that line too.")
    ] = False,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask for this key; may be repeated. Other users of the machine can see it here, and not in a file.",
            rich_help_panel=_ACCESS_PANEL,
            show_default=False,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with keys, one a line.", rich_help_panel=_ACCESS_PANEL)
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin whose pages may call the API from a browser; may be repeated.",
            rich_help_panel=_ACCESS_PANEL,
            show_default=False,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name that this server goes by, as behind a proxy; may be repeated.",
            rich_help_panel=_ACCESS_PANEL,
            show_default=False,
        ),
    ] = None,
    model_option: ModelOption = None,
    n_ctx: ContextOption = None,
    threads: ThreadsOption = None,
    backend: BackendOption = None,
    cache_type: CacheTypeOption = None,
    chat_template: ChatTemplateOption = None,
) -> None:
    """Serve the model over HTTP: OpenAI's API, and a chat page at /.

    Examples:

        minfer serve

        minfer serve ./model.gguf --port 9000 --parallel 16

        minfer serve --host 0.0.0.0 --api-key-file keys.txt
    """
    # The web libraries take half a second to import, which no other verb should wait for.
    from minfer.serve import Limits, Server, ServerConfig, configure_logging, create_app, listen

    named = chosen_model(model, model_option)
    path = fetch_model(named, ProgressBar())
    name = path.stem
    as_given = () if named == name or Path(named) == path else (named,)
    config = ServerConfig(
        host=host,
        port=port,
        api_keys=(*(api_key or ()), *_keys(api_key_file)),
        cors_origins=tuple(cors_origin or ()),
        allowed_hosts=tuple(allowed_host or ()),
        model_aliases=(*as_given, *(alias or ())),
        unlisted_names=("default", path.name),
        takes_any_model_name=any_model_name,
        log_prompts=log_prompts,
        limits=Limits(drain_s=drain_s),
    )
    if not config.is_loopback and not config.api_keys:
        _say(f"warning: everybody who reaches {host} can use this server; --api-key-file asks for a key")
    opened: list[minfer.Model] = []

    def load() -> BatchEngine:
        loaded = minfer.load(
            path,
            n_ctx,
            threads,
            backend,
            cache_type,
            chat_template=chat_template,
            n_sequences=parallel,
            progress=ProgressBar(),
        )
        opened.append(loaded)
        engine = loaded.batch_engine(name, max_active=parallel, max_queued=queue)
        _say(f"{name} is ready")
        return engine

    server = Server(create_app(config), load)
    # After each step the engine's thread waits for Python's lock, by default up to 5 ms while the web side holds it.
    sys.setswitchinterval(_SWITCH_S)
    listener = listen(config)
    configure_logging(log_requests=log_requests)
    shown = f"[{host}]" if ":" in host else host
    _say(f"listening on http://{shown}:{listener.getsockname()[1]}")
    try:
        server.run_until_stopped(listener)
    finally:
        for loaded in opened:
            loaded.close()


def _keys(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ParameterError(f"can't read the API keys in {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ParameterError(f"the API keys in {path} are not UTF-8 text") from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ParameterError(f"there is no API key in {path}")
    return keys


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201
