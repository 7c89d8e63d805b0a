"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway


class ModelObject(Struct, frozen=True):
    """OpenAI's fields, and what a client needs to know of ours: the context and the shortest cacheable prompt."""

    id: str
    created: int
    context_tokens: int
    min_cacheable_tokens: int
    object: str = "model"
    owned_by: str = "turnpike"


class ModelList(Struct, frozen=True):
    """All of them."""

    data: list[ModelObject]
    object: str = "list"


def model_object(model: ServedModel, context_tokens: int) -> ModelObject:
    """One model, with the context that its replicas give it."""
    return ModelObject(model.name, model.created, context_tokens, model.min_cacheable_tokens)


def model_list(models: Iterable[tuple[ServedModel, int]]) -> ModelList:
    """All models, each with its context."""
    return ModelList([model_object(model, context_tokens) for model, context_tokens in models])


def model_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    models, context_tokens = gateway.services.models, gateway.admission.context_tokens

    @get("/v1/models")
    async def list_models() -> Response[bytes]:
        """Every served model."""
        found = model_list((model, context_tokens(model)) for model in models)
        return Response(msgspec.json.encode(found), media_type=MediaType.JSON)

    @get("/v1/models/{name:path}")
    async def retrieve_model(name: FromPath[str]) -> Response[bytes]:
        """One served model."""
        model = models.get(name.lstrip("/"))
        return Response(msgspec.json.encode(model_object(model, context_tokens(model))), media_type=MediaType.JSON)

    return [list_models, retrieve_model]
