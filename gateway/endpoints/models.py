"""GET /v1/models and /v1/models/{id}: the served models, in the dialect that the client speaks."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from gateway.dialects.anthropic.messages_request import VERSIONS
from gateway.dialects.anthropic.models import ModelInfo, ModelPage, model_info, model_page
from gateway.dialects.query_parameters import Parameters
from gateway.errors import ModelNotFound
from gateway.http.operations import HeaderParameter, describes, query
from gateway.http.policies import demands
from gateway.http.responses import VERSION_HEADER, dialect_of, json_response
from gateway.request_context import request_context
from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway


class ModelObject(Struct, frozen=True, kw_only=True):
    """OpenAI's fields, and four of ours: the context and the shortest prompt that can be cached, both in tokens, for
    which model this is only another name, under whose own name it is limited and billed, and which served model an
    adapter of the project changes."""

    id: Annotated[str, Meta(examples=["tiny"])]
    created: int
    context_tokens: int
    min_cacheable_tokens: int
    alias_of: str | UnsetType = UNSET
    adapter_of: str | UnsetType = UNSET
    object: str = "model"
    owned_by: str = "turnpike"


class ModelList(Struct, frozen=True):
    """The served models; a page of them in Anthropic's dialect."""

    data: list[ModelObject]
    object: str = "list"


_VERSION = HeaderParameter(
    VERSION_HEADER, "With it the answer is in Anthropic's dialect.", example=VERSIONS[0], values=VERSIONS
)
_PAGE = (
    query("limit", Annotated[int, Meta(ge=1, le=1000)], "How many models to list, in Anthropic's dialect.", example=20),
    query("after_id", str, "The last model of the page before, in Anthropic's dialect.", example="tiny"),
    query("before_id", str, "The first model of the page behind, in Anthropic's dialect.", example="tiny"),
)


def model_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    models = gateway.services.models

    def model_object(name: str, model: ServedModel) -> ModelObject:
        return ModelObject(
            id=name,
            created=model.created if model.adapter is None else model.adapter.created,
            context_tokens=gateway.admission.context_tokens(model),  # as its replicas allow it
            min_cacheable_tokens=model.min_cacheable_tokens,
            alias_of=UNSET if name == model.full_name else model.full_name,
            adapter_of=UNSET if model.adapter is None else model.name,
        )

    def anthropic_info(name: str, model: ServedModel) -> ModelInfo:
        return replace(model_info(model, gateway.admission.context_tokens(model)), id=name)

    def names() -> list[tuple[str, ServedModel]]:
        return [(model.name, model) for model in models] + [(alias, models.get(alias)) for alias in models.aliases]

    async def own(request: Request[Any, Any, Any]) -> list[ServedModel]:
        """The adapted models of the project whose key asks."""
        principal = request_context(request.scope).authenticated_principal
        if principal.tenant_id is None or principal.project_id is None:
            return []
        return await gateway.questions.wait(gateway.adapted_models.own(principal.tenant_id, principal.project_id))

    @get("/v1/models", opt=demands("models.read") | describes((ModelList, ModelPage), query=_PAGE, headers=[_VERSION]))
    async def list_models(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Every served model that the key may use, the further names under which they can be asked for, and the
        project's own adapted ones."""
        limits = request_context(request.scope).authenticated_principal.limits
        served = names() + [(model.full_name, model) for model in await own(request)]
        allowed = [(name, model) for name, model in served if limits.allows_model(model.name)]
        if dialect_of(request.scope) == "anthropic":
            page = model_page([anthropic_info(*one) for one in allowed], Parameters.of(request))
            return json_response(page)
        return json_response(ModelList([model_object(*one) for one in allowed]))

    @get(
        "/v1/models/{name:path}",
        opt=demands("models.read")
        | describes(
            (ModelObject, ModelInfo), headers=[_VERSION], path={"name": "tiny"}, errors={"model_not_found": 404}
        ),
    )
    async def retrieve_model(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One served model."""
        name = name.lstrip("/")
        model = models.find(name)
        if model is None:
            model = next((one for one in await own(request) if one.full_name == name), None)
        if model is None:
            raise ModelNotFound(f"The model {name!r} does not exist.", path="$.model")
        if not request_context(request.scope).authenticated_principal.limits.allows_model(model.name):
            raise ModelNotFound(f"The model {model.name!r} does not exist.", path="$.model")
        describe = anthropic_info if dialect_of(request.scope) == "anthropic" else model_object
        return json_response(describe(name, model))

    return [list_models, retrieve_model]
