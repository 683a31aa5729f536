"""/v1/completions: text continued, and scored."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from minfer.engine.answer import UNLIMITED
from minfer.serve.completion_prompt import completion_prompts
from minfer.serve.completion_run import CompletionRun
from minfer.serve.errors import invalid
from minfer.serve.json_body import JsonRoute
from minfer.serve.openapi import GENERATION_ERRORS, JSON_OR_EVENTS
from minfer.serve.record import record_of
from minfer.serve.requests import check_fields, check_model, note_prompt, room, serve_request
from minfer.serve.schema_completions import DEFAULT_MAX_TOKENS, CompletionRequest, CompletionResponse
from minfer.serve.state import server_state
from minfer.serve.streaming import respond
from minfer.serve.submission import Submission

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/completions",
    response_model=None,
    responses={200: {"model": CompletionResponse, "content": JSON_OR_EVENTS}, **GENERATION_ERRORS},
    tags=["OpenAI"],
)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continues text. With `echo` and `logprobs` the prompt is scored too; `max_tokens` 0 then scores it alone."""
    state = server_state(request)
    engine, limits = state.ready_engine(), state.config.limits
    note_prompt(request, state.config, body)
    check_model(engine, state.config, body.model)
    check_fields(engine, limits, body)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise invalid("max_tokens: 0 goes with echo", "max_tokens", "invalid_value")
    most = min(limits.max_prompts, engine.max_queued)
    if isinstance(body.prompt, list) and not isinstance(body.prompt[0], int) and len(body.prompt) > most:
        raise invalid(f"prompt: at most {most} prompts", "prompt", "invalid_value")
    prompts = await state.in_thread(lambda: completion_prompts(engine.tokenizer, body))
    scores_prompt = body.echo and (body.logprobs is not None or max_tokens == 0)
    serve = [
        serve_request(
            engine,
            body,
            prompt.tokens,
            room(engine, len(prompt.tokens), None if max_tokens == UNLIMITED else max_tokens, "prompt"),
            continues_text=True,
            logprobs=body.logprobs,
            prompt_logprobs=(body.logprobs or 0) if scores_prompt else None,
        )
        for prompt in prompts
    ]
    submission = Submission(engine, serve, record_of(request.scope), limits.keep_alive_s)
    run = CompletionRun(engine, body, prompts, submission, serve[0].sampling)
    return await respond(run, submission, request.receive, streams=bool(body.stream), timeout_s=limits.send_timeout_s)
