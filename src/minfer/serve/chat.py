"""/v1/chat/completions: the answers to a conversation."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from minfer.engine.answer import UNLIMITED
from minfer.serve.chat_prompt import chat_prompt
from minfer.serve.chat_run import ChatRun
from minfer.serve.errors import invalid
from minfer.serve.json_body import JsonRoute
from minfer.serve.openapi import GENERATION_ERRORS, JSON_OR_EVENTS
from minfer.serve.record import record_of
from minfer.serve.requests import check_fields, check_model, note_prompt, room, serve_request
from minfer.serve.schema_chat import ChatRequest, ChatResponse
from minfer.serve.state import server_state
from minfer.serve.streaming import respond
from minfer.serve.submission import Submission

router = APIRouter(route_class=JsonRoute)


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses={200: {"model": ChatResponse, "content": JSON_OR_EVENTS}, **GENERATION_ERRORS},
    tags=["OpenAI"],
)
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Continues a conversation. With `stream`, the answer comes as server-sent events of type `ChatChunk`."""
    state = server_state(request)
    engine, limits = state.ready_engine(), state.config.limits
    note_prompt(request, state.config, body)
    check_model(engine, state.config, body.model)
    check_fields(engine, limits, body)
    max_tokens = _max_tokens(body)
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs: goes with logprobs", "top_logprobs", "invalid_value")
    prompt = await state.in_thread(
        lambda: chat_prompt(engine.tokenizer, body.messages, body, with_tools=body.tool_choice != "none")
    )
    serve = serve_request(
        engine,
        body,
        prompt.tokens,
        room(engine, len(prompt.tokens), max_tokens, "messages"),
        continues_text=prompt.continues_text,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    submission = Submission(engine, [serve], record_of(request.scope), limits.keep_alive_s)
    run = ChatRun(engine, body, prompt, submission, serve.sampling)
    return await respond(run, submission, request.receive, streams=bool(body.stream), timeout_s=limits.send_timeout_s)


def _max_tokens(body: ChatRequest) -> int | None:
    given = {
        name: value for name in ("max_tokens", "max_completion_tokens") if (value := getattr(body, name)) is not None
    }
    for name, value in given.items():
        if value == 0:
            raise invalid(f"{name}: 0; it must be at least 1, or -1 for as many as fit", name, "invalid_value")
    if len(set(given.values())) > 1:
        message = "max_completion_tokens: differs from max_tokens, which is its older name"
        raise invalid(message, "max_completion_tokens", "invalid_value")
    n = next(iter(given.values()), UNLIMITED)
    return None if n == UNLIMITED else n
