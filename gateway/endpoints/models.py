"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from gateway.dialects.openai_models import model_list, model_object
from gateway.services import Gateway


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
