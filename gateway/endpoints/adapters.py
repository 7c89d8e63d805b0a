"""/v1/adapters: a project uploads its adapters of served models, lists, reads and deletes them. Requests ask for one as
`base:name`.

Ids and names of other projects are as unknown as those that never were.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, Meta, Struct, UnsetType

from file_store.adapters import StoredAdapter
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.adapter_uploads import (
    adapter_id,
    adapter_store,
    remove_adapter,
    unknown_adapter,
    upload_adapter,
)
from gateway.endpoints.rate_limits import count_request
from gateway.http.authentication import project_payer
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.public_ids import public_id

_SECOND = 1_000_000
_ID = "adapter_01934f6e0d2a7b3c8e51a9c4d7f60b12"
AdapterName: TypeAlias = Annotated[str, Meta(examples=[_ID])]
_PATH = {"adapter": _ID}


class AdapterObject(Struct, frozen=True, kw_only=True):
    """An adapter. `model` is what requests ask for, `base` the served model that it changes, `targets` the kinds of
    layers in which, `invocation_tokens` those from which on it acts, if it is an activated one. `digest` is the SHA-256
    of what decides its results. `created_at` is in seconds since the Unix epoch."""

    id: AdapterName
    object: Literal["adapter"] = "adapter"
    model: Annotated[str, Meta(examples=["tiny:support"])]
    base: Annotated[str, Meta(examples=["tiny"])]
    name: Annotated[str, Meta(examples=["support"])]
    digest: Annotated[str, Meta(examples=["9f" * 32])]
    rank: Annotated[int, Meta(examples=[16])]
    alpha: Annotated[float, Meta(examples=[32.0])]
    targets: Annotated[list[str], Meta(examples=[["q_proj", "v_proj"]])]
    layers: Annotated[int, Meta(examples=[2])]
    invocation_tokens: Annotated[list[int], Meta(examples=[[]])]
    bytes: int
    created_at: int


class AdapterList(Struct, frozen=True, kw_only=True):
    """A project's adapters, the newest first."""

    object: Literal["list"] = "list"
    data: list[AdapterObject]


class AdapterForm(Struct, frozen=True, kw_only=True):
    """The form of an upload: both files that PEFT saves, the served model that they change, and a name."""

    model: Annotated[str, Meta(description="The served model that it changes.", examples=["tiny"])]
    name: Annotated[str, Meta(description="Its name behind the model's, as in `tiny:support`.", examples=["support"])]
    config: Annotated[str, Meta(description="The content of `adapter_config.json`.", examples=["{}"])]
    file: Annotated[
        str,
        Meta(
            description="The content of `adapter_model.safetensors`.",
            extra_json_schema={"format": "binary"},
            examples=["{}"],
        ),
    ]
    dry_run: (
        Annotated[str, Meta(description="`true`: only check it, and keep nothing.", examples=["true"])] | UnsetType
    ) = UNSET


class DeletedAdapter(Struct, frozen=True, kw_only=True):
    """An adapter that was deleted."""

    id: AdapterName
    object: Literal["adapter"] = "adapter"
    deleted: bool = True


def adapter_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    wait = gateway.questions.wait

    @post(
        "/v1/adapters",
        status_code=200,
        request_max_body_size=None,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(
            AdapterObject,
            body=AdapterForm(model="tiny", name="support", config="{}", file="{}"),
            body_type="multipart/form-data",
            errors={"invalid_form": 400, "conflict": 409, "model_not_found": 404},
        ),
    )
    async def create_adapter(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Upload an adapter, as a form. A process of its own checks it; it is sealed under the project's data key."""
        payer = project_payer(request.scope)
        await count_request(gateway, request, payer)
        return json_response(shown(await upload_adapter(gateway, payer, request)))

    @get("/v1/adapters", opt=demands("inference", "project_key", dialect="openai") | describes(AdapterList))
    async def list_adapters(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The project's adapters, the newest first."""
        payer = project_payer(request.scope)
        Parameters.of(request).reject_unknown()
        found = await wait(adapter_store(gateway).all(payer.tenant_id, payer.project_id))
        return json_response(AdapterList(data=[shown(one) for one in found]))

    @get(
        "/v1/adapters/{adapter:str}",
        opt=demands("inference", "project_key", dialect="openai") | describes(AdapterObject, path=_PATH),
    )
    async def retrieve_adapter(request: Request[Any, Any, Any], adapter: FromPath[str]) -> Response[bytes]:
        """An adapter, without its content."""
        payer, id_ = project_payer(request.scope), adapter_id(adapter)
        found = await wait(adapter_store(gateway).get(payer.tenant_id, payer.project_id, id_))
        if found is None:
            raise unknown_adapter(adapter)
        return json_response(shown(found))

    @delete(
        "/v1/adapters/{adapter:str}",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai") | describes(DeletedAdapter, path=_PATH),
    )
    async def delete_adapter(request: Request[Any, Any, Any], adapter: FromPath[str]) -> Response[bytes]:
        """Delete an adapter. Requests that run with it go on with it to their end."""
        payer, id_ = project_payer(request.scope), adapter_id(adapter)
        found = await wait(adapter_store(gateway).get(payer.tenant_id, payer.project_id, id_))
        if found is None or not await wait(remove_adapter(gateway, found)):
            raise unknown_adapter(adapter)
        return json_response(DeletedAdapter(id=public_id("adapter", found.id)))

    return [create_adapter, list_adapters, retrieve_adapter, delete_adapter]


def shown(adapter: StoredAdapter) -> AdapterObject:
    """An adapter as its project sees it."""
    facts = adapter.facts
    return AdapterObject(
        id=public_id("adapter", adapter.id),
        model=adapter.full_name,
        base=adapter.model,
        name=adapter.name,
        digest=adapter.digest,
        rank=facts.rank,
        alpha=facts.alpha,
        targets=list(facts.targets),
        layers=facts.layers,
        invocation_tokens=list(facts.invocation),
        bytes=adapter.bytes,
        created_at=adapter.created_at // _SECOND,
    )
