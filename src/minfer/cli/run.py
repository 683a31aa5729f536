"""minfer run: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import minfer
from minfer.cli.console import ProgressBar, Spinner, reports_errors, write_text
from minfer.engine import DEFAULT_MAX_TOKENS, Generation, Prompt, StopCause, TextStream
from minfer.errors import ParameterError
from minfer.sampling import SamplingParams

_DEFAULTS = SamplingParams()
MODEL_HELP = "A path, `default`, the name of a model in the cache (see `minfer models`), or hf:owner/repo:file.gguf."


@reports_errors
def run(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The prompt. `-`, or none with something piped in, reads it from stdin."),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)] = "default",
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Stop after so many tokens.")] = (
        DEFAULT_MAX_TOKENS
    ),
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 always takes the likeliest token; higher is more varied.")
    ] = _DEFAULTS.temperature,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest tokens; 0 is off.")] = _DEFAULTS.top_k,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest tokens that together reach p; 1 is off.")
    ] = _DEFAULTS.top_p,
    min_p: Annotated[
        float, typer.Option(help="Leave out tokens less than p times as likely as the likeliest; 0 is off.")
    ] = _DEFAULTS.min_p,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens of the last 64 less likely.")
    ] = _DEFAULTS.repetition_penalty,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on when the model ends its answer.")] = False,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message before the prompt.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the file's chat template.")
    ] = False,
    special: Annotated[bool, typer.Option("--special", help="With --raw: parse special tokens in the prompt.")] = False,
    n_ctx: Annotated[int | None, typer.Option(help="Positions of context; the model's own, up to 8192.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that compute.")] = None,
    backend: Annotated[str | None, typer.Option(help="The backend to run on.")] = None,
    cache_type: Annotated[str, typer.Option(help="Type of the KV cache: f32, f16 or q8_0.")] = "f32",
    stats: Annotated[bool, typer.Option("--stats", help="Print token counts and speed to stderr at the end.")] = False,
) -> None:
    """Answer a prompt.

    The prompt goes through the chat template of the model's file; --raw continues it as plain text instead.

    Examples:

        minfer run "Why is the sky blue?"

        cat notes.txt | minfer run --system "Summarise in one sentence."

        minfer run --raw "Once upon a time" --max-tokens 50 --temperature 0
    """
    text = _read_prompt(prompt)
    if raw and system is not None:
        raise ParameterError("--system goes through the chat template, which --raw leaves out: use one of them")
    if special and not raw:
        raise ParameterError("--special goes with --raw: a chat prompt's special tokens are the template's")
    asked: Prompt = text if raw else _messages(text, system)
    spinner = Spinner("opening the model")
    try:
        with minfer.load(
            model, n_ctx, threads, backend, cache_type, progress=_Exclusive(ProgressBar(), spinner)
        ) as loaded:
            stream = loaded.stream(
                asked,
                max_tokens=max_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                seed=seed,
                stop=stop or [],
                ignore_eos=ignore_eos,
                special=special,
                progress=lambda n, total: spinner.update(f"reading the prompt: {n} of {total} tokens"),
            )
            _show(stream, spinner, stats)
    finally:
        spinner.stop()


class _Exclusive:
    """A bar that takes the place of the spinner."""

    def __init__(self, bar: ProgressBar, spinner: Spinner) -> None:
        self._bar = bar
        self._spinner = spinner

    def start(self, description: str, total_bytes: int | None) -> None:
        self._spinner.stop()
        self._bar.start(description, total_bytes)

    def advance(self, n_bytes: int) -> None:
        self._bar.advance(n_bytes)

    def finish(self) -> None:
        self._bar.finish()


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise ParameterError('there is no prompt: minfer run "PROMPT", or pipe one in (see minfer run --help)')
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    if not text.strip():
        raise ParameterError("the prompt is empty")
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _show(stream: TextStream, spinner: Spinner, stats: bool) -> None:
    spinner.update("reading the prompt")
    ended = True
    try:
        for piece in stream:
            spinner.stop()
            write_text(piece)
    except KeyboardInterrupt:
        ended = False
        raise
    finally:
        spinner.stop()
        stream.close()
        result = stream.result
        if ended or result.text:
            write_text("" if result.text.endswith("\n") else "\n")
        if stats:
            print(_stats_line(result), file=sys.stderr)  # noqa: T201
        elif result.stop_cause is StopCause.CONTEXT_END:
            print("(the context is full; --n-ctx sets its size)", file=sys.stderr)  # noqa: T201


def _stats_line(result: Generation) -> str:
    stats = result.stats
    prefill_rate, decode_rate = stats.prefill_tokens_per_s, stats.decode_tokens_per_s
    return (
        f"prefill: {stats.n_prefill_tokens} tokens in {stats.prefill_s:.2f} s ({prefill_rate:.1f} tokens/s); "
        f"decode: {stats.n_decode_tokens} tokens in {stats.decode_s:.2f} s ({decode_rate:.1f} tokens/s); "
        f"generated: {len(result.tokens)} tokens; finish: {result.finish_reason.value} ({result.stop_cause.value}); "
        f"seed: {stats.seed}"
    )
