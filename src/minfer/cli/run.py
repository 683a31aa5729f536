"""minfer run: one prompt, one answer, or several."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer

from minfer.cli.console import Spinner, open_model, printable, reports_errors, write_text
from minfer.cli.options import (
    BackendOption,
    CacheTypeOption,
    ChatTemplateOption,
    ContextOption,
    ModelOption,
    StopOption,
    SystemOption,
    ThreadsOption,
    chosen_model,
    readable,
)
from minfer.cli.parameters import token_limit
from minfer.cli.prompt_argument import check_prompt_argument
from minfer.cli.reports import end_notice, stats_lines
from minfer.cli.sampling_options import with_sampling_options
from minfer.cli.stdin import FIRST_BYTE_S, read_stdin, read_stdin_beside_prompt
from minfer.engine import DEFAULT_MAX_TOKENS, GenerateOptions, Model, Prompt, SampleStream, TextStream
from minfer.errors import ParameterError


@reports_errors
@with_sampling_options
def run(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="The prompt. What is piped in comes before it; `-` or none stands for that alone.",
            callback=readable,
        ),
    ] = None,
    stdin: Annotated[
        bool | None,
        typer.Option(
            "--stdin/--no-stdin",
            help="Beside a prompt: wait for stdin however long it takes, or leave it alone. By default it is read, "
            f"unless it is a terminal or a pipe in which nothing comes for {FIRST_BYTE_S:g} s.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Stop after so many tokens; -1 sets no limit.")
    ] = (DEFAULT_MAX_TOKENS),
    stop: StopOption = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on when the model ends its answer.")] = False,
    system: SystemOption = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the file's chat template.")
    ] = False,
    special: Annotated[bool, typer.Option("--special", help="With --raw: parse special tokens in the prompt.")] = False,
    context_shift: Annotated[
        bool,
        typer.Option("--context-shift", help="With --raw: when the context is full, drop its older half and go on."),
    ] = False,
    n_samples: Annotated[
        int | None,
        typer.Option("--n-samples", help="Give so many answers, generated together.", show_default=False, min=1),
    ] = None,
    best_of: Annotated[
        int | None,
        typer.Option("--best-of", help="Generate so many answers, and give the likeliest.", show_default=False, min=1),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print counts and speed to stderr at the end.")] = False,
    model: ModelOption = None,
    n_ctx: ContextOption = None,
    threads: ThreadsOption = None,
    backend: BackendOption = None,
    cache_type: CacheTypeOption = None,
    chat_template: ChatTemplateOption = None,
    *,
    sampling: dict[str, Any],
) -> None:
    """Answer a prompt.

    The prompt goes through the chat template of the model's file; --raw continues it as plain text instead.

    Examples:

        minfer run "Why is the sky blue?"

        cat notes.txt | minfer run "Summarise this in one sentence."

        minfer run --raw "Once upon a time" --max-tokens 50 --temperature 0

        minfer run "A name for a cat?" --n-samples 5
    """
    if prompt is not None:
        check_prompt_argument(prompt, context.args, model_is_given=model is not None)
    text = _read_prompt(prompt, stdin)
    for option, value in (("--system", system), ("--chat-template", chat_template)):
        if raw and value is not None:
            raise ParameterError(f"{option} is for the chat template, which --raw leaves out: use one of them")
    if (special or context_shift) and not raw:
        what = "--special" if special else "--context-shift"
        why = "special tokens are the template's" if special else "only turn has to stay whole"
        raise ParameterError(f"{what} goes with --raw: a chat prompt's {why}")
    if n_samples is not None and best_of is not None:
        raise ParameterError("--n-samples shows every answer, and --best-of one: use one of them")
    asked: Prompt = text if raw else _messages(text, system)
    given = {"stop": stop or [], "ignore_eos": ignore_eos, "special": special, **sampling}
    options = cast(GenerateOptions, given)
    spinner = Spinner("opening the model")
    try:
        name = chosen_model(None, model)
        with open_model(name, n_ctx, threads, backend, cache_type, chat_template, spinner) as loaded:
            options["max_tokens"] = token_limit(max_tokens, loaded.n_ctx)
            options["progress"] = lambda n, total: spinner.update(f"reading the prompt: {n} of {total} tokens")
            n = n_samples if best_of is None else best_of
            if n is None:
                options["context_shift"] = context_shift
                _show(loaded, loaded.stream(asked, **options), spinner, stats)
            else:
                options["logprobs"] = 0
                samples = loaded.stream_samples(asked, n, **options)
                _show_samples(loaded, samples, spinner, only_best=best_of is not None, stats=stats)
    finally:
        spinner.stop()


def _read_prompt(prompt: str | None, stdin: bool | None) -> str:
    if prompt is None or prompt == "-":
        if prompt is None and (stdin is False or (stdin is None and sys.stdin.isatty())):
            raise ParameterError('there is no prompt: minfer run "PROMPT", or pipe one in (see minfer run --help)')
        return read_stdin()
    if stdin is False:
        return prompt
    piped = (read_stdin() if stdin else read_stdin_beside_prompt()).rstrip("\r\n")
    return f"{piped}\n\n{prompt}" if piped.strip() else prompt


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    if not text.strip():
        raise ParameterError('the prompt is empty; give one as in minfer run "PROMPT", or pipe one in')
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _show(model: Model, stream: TextStream, spinner: Spinner, stats: bool) -> None:
    spinner.update("reading the prompt")
    ended = True
    try:
        for piece in stream:
            spinner.stop()
            write_text(printable(piece) if sys.stdout.isatty() else piece)
    except KeyboardInterrupt:
        ended = False
        raise
    finally:
        spinner.stop()
        stream.close()
        result = stream.result
        if ended or result.text:
            write_text("" if result.text.endswith("\n") else "\n")
        _report(stats_lines(model, result, stream.stages, stream.sampling) if stats else [end_notice(result)])


def _show_samples(model: Model, samples: SampleStream, spinner: Spinner, *, only_best: bool, stats: bool) -> None:
    n_tokens = 0
    try:
        for _, delta in samples:
            n_tokens += len(delta.tokens)
            spinner.update(f"generated {n_tokens} tokens")
    finally:
        spinner.stop()
        samples.close()
        results = samples.results
        if only_best:
            results = [max(results, key=lambda result: result.mean_logprob)]
        for index, result in enumerate(results):
            if not only_best:
                write_text(f"--- {index + 1} of {len(results)}, seed {result.stats.seed}", "\n")
            text = printable(result.text) if sys.stdout.isatty() else result.text
            write_text(text, "" if result.text.endswith("\n") else "\n")
            _report(stats_lines(model, result, samples.stages, samples.sampling) if stats else [end_notice(result)])


def _report(lines: list[str]) -> None:
    for line in filter(None, lines):
        print(line, file=sys.stderr)  # noqa: T201
