"""/v1/adapters: a project uploads its adapters of served models, lists, reads and deletes them. Requests ask for one as
`base:name`.

Ids and names of other projects are as unknown as those that never were.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct

from file_store.adapters import AdapterStore, NameTaken, StoredAdapter
from file_store.sealed_content import ContentWriter
from gateway.adapters.checking import MOST_CHECKS, AdapterCheck
from gateway.admission.prepared_request import Payer
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.files import announced, room_for, storage_full
from gateway.endpoints.rate_limits import count_request
from gateway.errors import BodyTooLarge, Conflict, InvalidField, ModelNotFound, NotAllowed, NotFound
from gateway.http.authentication import project_payer
from gateway.http.multipart_body import Form, read_form
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.served_models.served_model import ServedModel
from gateway.services import Gateway
from model_files.adapter_config import MOST_CONFIG_BYTES
from model_files.adapter_file import MOST_BYTES, trailer
from storage.database.public_ids import prefixed_id, public_id

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
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


class DeletedAdapter(Struct, frozen=True, kw_only=True):
    """An adapter that was deleted."""

    id: AdapterName
    object: Literal["adapter"] = "adapter"
    deleted: bool = True


def adapter_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    wait = gateway.questions.wait
    checks = asyncio.Semaphore(MOST_CHECKS)

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
        async with checks:
            return json_response(shown(await _uploaded(gateway, payer, request)))

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
        payer, id_ = project_payer(request.scope), _id_of(adapter)
        found = await wait(adapter_store(gateway).get(payer.tenant_id, payer.project_id, id_))
        if found is None:
            raise _unknown(adapter)
        return json_response(shown(found))

    @delete(
        "/v1/adapters/{adapter:str}",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai") | describes(DeletedAdapter, path=_PATH),
    )
    async def delete_adapter(request: Request[Any, Any, Any], adapter: FromPath[str]) -> Response[bytes]:
        """Delete an adapter. Requests that run with it go on with it to their end."""
        payer, id_, store = project_payer(request.scope), _id_of(adapter), adapter_store(gateway)
        gone = await wait(store.delete(payer.tenant_id, payer.project_id, id_))
        if gone is None:
            raise _unknown(adapter)
        if not await wait(store.has_digest(gone.digest)):
            gateway.services.fleet.drop_adapter(gone.model, gone.digest)
        return json_response(DeletedAdapter(id=public_id("adapter", gone.id)))

    return [create_adapter, list_adapters, retrieve_adapter, delete_adapter]


def adapter_store(gateway: Gateway) -> AdapterStore:
    """The gateway's adapters. Raises NotFound where there are none."""
    if gateway.adapters is None:
        raise NotFound("This gateway keeps no adapters.")
    return gateway.adapters


def shown(adapter: StoredAdapter) -> AdapterObject:
    """An adapter as its project sees it."""
    facts = adapter.facts
    return AdapterObject(
        id=public_id("adapter", adapter.id),
        model=f"{adapter.model}:{adapter.name}",
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


def _bounded(writer: ContentWriter, left: int) -> Callable[[bytes], Any]:
    async def take(content: bytes) -> None:
        if writer.size + len(content) > left:
            raise storage_full("file")
        if writer.size + len(content) > MOST_BYTES:
            raise BodyTooLarge(f"An adapter may have at most {MOST_BYTES} bytes.")
        await writer.append(content)

    return take


def _fields(gateway: Gateway, payer: Payer, form: Form) -> tuple[ServedModel, str, bytes]:
    """The served model, the name and the configuration in a form. Raises InvalidField, ModelNotFound, NotAllowed."""
    texts = dict(form.texts)
    if form.filename is None:
        raise InvalidField("file", "it is missing", code="missing_required_parameter")
    taken = {}
    for field in ("model", "name", "config"):
        if field not in texts:
            raise InvalidField(field, "it is missing", code="missing_required_parameter")
        taken[field] = texts.pop(field)
    if texts:
        raise InvalidField(next(iter(texts))[:80], "there is no such field", code="unknown_parameter")
    model = gateway.services.models.find(taken["model"])
    if model is None:
        raise ModelNotFound(f"The model {taken['model'][:80]!r} does not exist.", path="model")
    payer.check(model.name)
    if not _NAME.fullmatch(taken["name"]):
        raise InvalidField("name", "it must be 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first")
    return model, taken["name"], taken["config"].encode()


async def _uploaded(gateway: Gateway, payer: Payer, request: Request[Any, Any, Any]) -> StoredAdapter:
    """Read the form of an upload, seal its content, have it checked, and keep it. Raises what keeps it from that."""
    store, wait = adapter_store(gateway), gateway.questions.wait
    if not await gateway.response_keeper.keeps_content(payer):
        raise NotAllowed("This project keeps nothing of its content, so no adapters.", code="content_not_kept")
    async with room_for(gateway, payer, "file", *announced(request, MOST_BYTES)) as room:
        id_, writer = await wait(store.files.begin(payer.tenant_id, payer.project_id, room))
        try:
            silent_s = gateway.services.options.client_timeout
            form = await read_form(request, silent_s, _bounded(writer, room.bytes), most_text=MOST_CONFIG_BYTES)
            model, name, config = _fields(gateway, payer, form)
            await writer.append(trailer(config))
            await writer.commit()
        except BaseException:
            await writer.discard()
            raise
        try:
            new = await _checked(store, payer, model, name, (id_, writer.size))
            return await wait(store.save(new))
        except BaseException as error:
            await store.files.discard(id_)
            if isinstance(error, NameTaken):
                problem = f"The project has an adapter of {model.name!r} named {name!r}; delete it first."
                raise Conflict(problem, path="name") from error
            raise


async def _checked(
    store: AdapterStore, payer: Payer, model: ServedModel, name: str, written: tuple[UUID, int]
) -> StoredAdapter:
    """What there is to say of an adapter whose content is `written`: its id and bytes. Raises InvalidField,
    Unavailable."""
    id_, size = written
    check = await AdapterCheck.begin(model.text_digest, model.folder)
    try:
        reader = await store.reader(payer.tenant_id, payer.project_id, id_, size)
        async for piece in reader.pieces():
            await check.take(piece)
        digest, facts = await check.verdict()
    finally:
        await check.end()
    return StoredAdapter(
        id=id_,
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        model=model.name,
        name=name,
        digest=digest,
        facts=facts,
        bytes=size,
        created_at=0,
    )


def _id_of(name: str) -> UUID:
    found = prefixed_id(name, "adapter_")
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no adapter {name[:80]!r}.", path="adapter_id")
