"""minfer run: one prompt, one answer, or several."""

from __future__ import annotations

import sys
from typing import Annotated, Any, cast

import typer

from minfer.cli.console import Spinner, open_model, printable, read_stdin, reports_errors, write_text
from minfer.cli.options import (
    MODEL_HELP,
    BackendOption,
    CacheTypeOption,
    ContextOption,
    ModelOption,
    StopOption,
    SystemOption,
    ThreadsOption,
)
from minfer.cli.reports import end_notice, stats_lines
from minfer.cli.sampling_options import with_sampling_options
from minfer.engine import DEFAULT_MAX_TOKENS, GenerateOptions, Model, Prompt, SampleStream, TextStream
from minfer.errors import ParameterError

__all__ = ["MODEL_HELP", "run"]


@reports_errors
@with_sampling_options
def run(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt. `-`, or none with something piped in, reads it from stdin."),
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
        int | None, typer.Option("--n-samples", help="Give so many answers, generated together.", show_default=False)
    ] = None,
    best_of: Annotated[
        int | None,
        typer.Option("--best-of", help="Generate so many answers, and give the likeliest.", show_default=False),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print counts and speed to stderr at the end.")] = False,
    model: ModelOption = "default",
    n_ctx: ContextOption = None,
    threads: ThreadsOption = None,
    backend: BackendOption = None,
    cache_type: CacheTypeOption = None,
    *,
    sampling: dict[str, Any],
) -> None:
    """Answer a prompt.

    The prompt goes through the chat template of the model's file; --raw continues it as plain text instead.

    Examples:

        minfer run "Why is the sky blue?"

        cat notes.txt | minfer run --system "Summarise in one sentence."

        minfer run --raw "Once upon a time" --max-tokens 50 --temperature 0

        minfer run "A name for a cat?" --n-samples 5
    """
    text = _read_prompt(prompt)
    if raw and system is not None:
        raise ParameterError("--system goes through the chat template, which --raw leaves out: use one of them")
    if (special or context_shift) and not raw:
        what = "--special" if special else "--context-shift"
        why = "special tokens are the template's" if special else "only turn has to stay whole"
        raise ParameterError(f"{what} goes with --raw: a chat prompt's {why}")
    if n_samples is not None and best_of is not None:
        raise ParameterError("--n-samples shows every answer, and --best-of one: use one of them")
    asked: Prompt = text if raw else _messages(text, system)
    given = {"max_tokens": max_tokens, "stop": stop or [], "ignore_eos": ignore_eos, "special": special, **sampling}
    options = cast(GenerateOptions, given)
    spinner = Spinner("opening the model")
    try:
        with open_model(model, n_ctx, threads, backend, cache_type, spinner) as loaded:
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


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise ParameterError('there is no prompt: minfer run "PROMPT", or pipe one in (see minfer run --help)')
    return read_stdin()


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    if not text.strip():
        raise ParameterError("the prompt is empty")
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
        _report(stats_lines(model, result, stream.stages) if stats else [end_notice(result)])


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
            _report(stats_lines(model, result, samples.stages) if stats else [end_notice(result)])


def _report(lines: list[str]) -> None:
    for line in filter(None, lines):
        print(line, file=sys.stderr)  # noqa: T201
