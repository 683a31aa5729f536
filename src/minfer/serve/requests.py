"""From a checked request body to what the engine is asked for."""

from __future__ import annotations

from fastapi import Request

from minfer.serve.config import Limits, ServerConfig
from minfer.serve.engine_protocol import Engine, ServeRequest
from minfer.serve.errors import ApiError, context_overflow, invalid
from minfer.serve.record import record_of
from minfer.serve.schema_common import GenerationFields


def note_prompt(request: Request, config: ServerConfig, body: GenerationFields) -> None:
    """Writes down what was asked for, where that is wanted in the log."""
    if config.log_prompts:
        record_of(request.scope).prompt = body.model_dump(exclude_none=True)


def listed_names(engine: Engine, config: ServerConfig) -> tuple[str, ...]:
    """The names under which the model is listed, its own first."""
    return tuple(dict.fromkeys((engine.model_name, *config.model_aliases)))


def check_model(engine: Engine, config: ServerConfig, name: str | None) -> None:
    """Refuses a model that is not served.

    Raises:
        ApiError: 404, naming those that are.
    """
    names = dict.fromkeys((*listed_names(engine, config), *config.unlisted_names))
    if name is None or name in names or config.takes_any_model_name:
        return
    message = (
        f"there is no model {name!r} here; the one that there is goes by {', '.join(names)} "
        "(the server's option --alias adds a name, and --any-model-name takes all)"
    )
    raise ApiError(404, message, "model_not_found", "model")


def check_fields(engine: Engine, limits: Limits, body: GenerationFields) -> None:
    """Refuses what the schema can't tell.

    Raises:
        ApiError: naming the field.
    """
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options: goes with stream", "stream_options", "invalid_value")
    if body.return_progress and not body.stream:
        raise invalid("return_progress: goes with stream", "return_progress", "invalid_value")
    if len(body.stops) > limits.max_stop_strings:
        raise invalid(f"stop: at most {limits.max_stop_strings} strings", "stop", "invalid_value")
    most = min(limits.max_samples, engine.max_active)
    if (body.n or 1) > most:
        raise invalid(f"n: at most {most}", "n", "invalid_value")
    for token in body.biases():
        if token >= engine.n_vocab:
            message = f"logit_bias: token {token} is not in the vocabulary of {engine.n_vocab}"
            raise invalid(message, "logit_bias", "invalid_value")


def room(engine: Engine, n_prompt_tokens: int, max_tokens: int | None, param: str) -> int:
    """How many tokens may be generated: those that were asked for, or where none were, all that fit.

    Raises:
        ApiError: they, or the prompt alone, don't fit into the context. `param` names the prompt.
    """
    n_free = engine.n_ctx - n_prompt_tokens
    if max_tokens is None:
        if n_free < 1:
            raise context_overflow(n_prompt_tokens, None, engine.n_ctx, param)
        return n_free
    if max_tokens > n_free:
        raise context_overflow(n_prompt_tokens, max_tokens, engine.n_ctx, param if n_free < 0 else "max_tokens")
    return max_tokens


def serve_request(
    engine: Engine,
    body: GenerationFields,
    prompt_tokens: tuple[int, ...],
    max_tokens: int,
    *,
    continues_text: bool,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> ServeRequest:
    """The engine's request for one prompt."""
    return ServeRequest(
        prompt_tokens=prompt_tokens,
        sampling=body.sampling_params(engine.default_sampling),
        max_tokens=max_tokens,
        stop=body.stops,
        ignore_eos=bool(body.ignore_eos),
        continues_text=continues_text,
        n_samples=body.n or 1,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        reuse_prefix=body.cache_prompt is not False,
    )
