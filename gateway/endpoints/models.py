"""GET /v1/models and /v1/models/{id}: the served models, in the dialect that the client speaks."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from gateway.dialects.anthropic.models import ModelInfo, model_info, model_page
from gateway.dialects.query_parameters import Parameters
from gateway.http.policies import demands
from gateway.http.responses import json_response, speaks_anthropic
from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway


class ModelObject(Struct, frozen=True):
    """OpenAI's fields, and two of ours: the context, and the shortest prompt that can be cached, both in tokens."""

    id: str
    created: int
    context_tokens: int
    min_cacheable_tokens: int
    object: str = "model"
    owned_by: str = "turnpike"


class ModelList(Struct, frozen=True):
    data: list[ModelObject]
    object: str = "list"


def model_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    models = gateway.services.models

    def model_object(model: ServedModel) -> ModelObject:
        context_tokens = gateway.admission.context_tokens(model)  # as its replicas allow it
        return ModelObject(model.name, model.created, context_tokens, model.min_cacheable_tokens)

    def anthropic_info(model: ServedModel) -> ModelInfo:
        return model_info(model, gateway.admission.context_tokens(model))

    @get("/v1/models", opt=demands("models.read"))
    async def list_models(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Every served model."""
        if speaks_anthropic(request.scope):
            page = model_page([anthropic_info(model) for model in models], Parameters.of(request))
            return json_response(page)
        return json_response(ModelList([model_object(model) for model in models]))

    @get("/v1/models/{name:path}", opt=demands("models.read"))
    async def retrieve_model(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One served model."""
        model = models.get(name.lstrip("/"))
        return json_response(anthropic_info(model) if speaks_anthropic(request.scope) else model_object(model))

    return [list_models, retrieve_model]
