"""/health, /metrics and /v1/models: what the server is, and how it is doing."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from minfer.serve.json_body import JsonRoute
from minfer.serve.openapi import COMMON_ERRORS, error_responses
from minfer.serve.requests import check_model, listed_names
from minfer.serve.schema_common import SamplingReport, sampling_report
from minfer.serve.state import Health, ServerState, server_state

router = APIRouter(route_class=JsonRoute)


class HealthResponse(BaseModel):
    """How the server is."""

    status: Health


class ModelMeta(BaseModel):
    """What there is to know about a model."""

    n_ctx: int
    n_vocab: int
    default_sampling: SamplingReport = Field(description="What applies where a request says nothing.")


class ModelCard(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["minfer"] = "minfer"
    meta: ModelMeta


class ModelList(BaseModel):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/health", responses={500: {"model": HealthResponse}, 503: {"model": HealthResponse}}, tags=["Server"])
async def health(request: Request) -> HealthResponse:
    """200 `ok`; 503 while `loading` or `stopping`; 500 when the engine has `failed`."""
    state = server_state(request).health
    status = {Health.OK: 200, Health.FAILED: 500}.get(state, 503)
    return JSONResponse({"status": state.value}, status)  # type: ignore[return-value]  # the schema's model, as JSON


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **COMMON_ERRORS},
    tags=["Server"],
)
async def metrics(request: Request) -> Response:
    """All counters, for Prometheus."""
    return Response(server_state(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models/", include_in_schema=False)
@router.get("/v1/models", responses={**COMMON_ERRORS, **error_responses(503)}, tags=["OpenAI"])
async def models(request: Request) -> ModelList:
    """The model, under each of its names."""
    state = server_state(request)
    return ModelList(data=[_card(state, name) for name in listed_names(state.ready_engine(), state.config)])


@router.get("/v1/models/{name:path}", responses={**COMMON_ERRORS, **error_responses(404, 503)}, tags=["OpenAI"])
async def model(name: str, request: Request) -> ModelCard:
    """The model, under any of the names that it answers to."""
    state = server_state(request)
    check_model(state.ready_engine(), state.config, name)
    return _card(state, name)


def _card(state: ServerState, name: str) -> ModelCard:
    engine = state.ready_engine()
    defaults = engine.default_sampling
    meta = ModelMeta(
        n_ctx=engine.n_ctx, n_vocab=engine.n_vocab, default_sampling=sampling_report(defaults.params, defaults)
    )
    return ModelCard(id=name, created=state.started, meta=meta)
