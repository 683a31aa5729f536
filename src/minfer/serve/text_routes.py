"""/tokenize, /detokenize and /apply-template: the tokenizer and the chat template alone."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from minfer.serve.chat_prompt import check_tools, continues_last, plain_messages, plain_tools, template_variables
from minfer.serve.errors import invalid
from minfer.serve.json_body import JsonRoute
from minfer.serve.openapi import BODY_ERRORS
from minfer.serve.schema_chat import Messages, TemplateFields
from minfer.serve.schema_common import Text
from minfer.serve.schema_completions import MAX_PROMPT_TOKENS
from minfer.serve.schema_sampling import StrictModel, TokenId
from minfer.serve.state import server_state

router = APIRouter(route_class=JsonRoute)


class TokenizeRequest(StrictModel):
    """A text to be cut into tokens."""

    content: Text
    add_special: bool = Field(False, description="Put BOS in front, if the model wants it.")
    parse_special: bool = Field(True, description="Special tokens in the text are such, not plain text.")
    with_pieces: bool = Field(False, description="Tell the text of each token too.")


class TokenPiece(BaseModel):
    """A token with its text, or with its bytes where they are no UTF-8 by themselves."""

    id: int
    piece: str | list[int]


class TokenizeResponse(BaseModel):
    """The tokens of a text."""

    tokens: list[int] | list[TokenPiece]


class DetokenizeRequest(StrictModel):
    """Tokens to be made text."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS)]


class DetokenizeResponse(BaseModel):
    """The text of tokens; bytes that are no UTF-8 are U+FFFD."""

    content: str


class ApplyTemplateRequest(TemplateFields):
    """A conversation to be written as the model reads it."""

    messages: Messages


class ApplyTemplateResponse(BaseModel):
    """A prompt."""

    prompt: str


@router.post("/tokenize", responses=BODY_ERRORS, tags=["Text"])
async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeResponse:
    """Cuts a text into tokens."""
    state = server_state(request)
    tokenizer = state.ready_engine().tokenizer

    def work() -> TokenizeResponse:
        ids = tokenizer.tokenize(body.content, special=body.parse_special, add_bos=body.add_special)
        if not body.with_pieces:
            return TokenizeResponse(tokens=ids)
        return TokenizeResponse(tokens=[TokenPiece(id=i, piece=_piece(tokenizer.token_bytes(i))) for i in ids])

    return await state.in_thread(work)


@router.post("/detokenize", responses=BODY_ERRORS, tags=["Text"])
async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizeResponse:
    """Makes text of tokens."""
    state = server_state(request)
    tokenizer = state.ready_engine().tokenizer
    for token in body.tokens:
        if token >= tokenizer.n_vocab:
            message = f"tokens: token {token} is not in the vocabulary of {tokenizer.n_vocab}"
            raise invalid(message, "tokens", "invalid_value")
    return DetokenizeResponse(content=await state.in_thread(lambda: tokenizer.detokenize(body.tokens)))


@router.post("/apply-template", responses=BODY_ERRORS, tags=["Text"])
async def apply_template(body: ApplyTemplateRequest, request: Request) -> ApplyTemplateResponse:
    """Writes a conversation as the model's chat template has it."""
    state = server_state(request)
    tokenizer = state.ready_engine().tokenizer
    variables = template_variables(body)

    def work() -> str:
        messages, tools = plain_messages(tokenizer, body.messages), plain_tools(body)
        if tools is not None:
            check_tools(tokenizer, tools)
        starts, continues = body.add_generation_prompt is not False, continues_last(body.messages, body)
        return tokenizer.apply_template(messages, tools, starts, continues, **variables)

    return ApplyTemplateResponse(prompt=await state.in_thread(work))


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
