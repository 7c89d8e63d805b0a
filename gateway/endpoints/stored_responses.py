"""/v1/responses: a project lists, reads, resumes, cancels and deletes what is kept of its responses.

Ids of other projects are as unknown as ids that never were. What is kept only for those that go on from it can be
listed and deleted, not read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from msgspec import Meta, Struct

from gateway.dialects.json_paths import json_object
from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.dialects.openai.responses.input_items import listed
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.response_events import ResponseEvents
from gateway.endpoints.responses_description import EVENT_TYPES, EVENTS_EXAMPLE, EXAMPLE
from gateway.errors import InvalidField, NotFound
from gateway.http.authentication import project_payer
from gateway.http.body_budget import BodyShare
from gateway.http.operations import Events, describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.kept_responses.earlier_items import input_of
from gateway.kept_responses.keeper import PREFIX, response_id_of, unknown
from gateway.services import Gateway
from response_store.records import RUNNING, ListedResponse, StoredResponse

_ID = f"{PREFIX}01934f6e0d2a7b3c8e51a9c4d7f60b12"
ResponseName: TypeAlias = Annotated[str, Meta(examples=[_ID])]


_ITEM = (
    '{"id": "item_01934f6e0d2a7b3c8e51a9c4d7f60b120000", "type": "message", "status": "completed", "role": "user", '
    '"content": [{"type": "input_text", "text": "What is the capital of France?"}]}'
)
ItemJson: TypeAlias = Annotated[msgspec.Raw, json_object("An item of the input, as it was sent.")]


class ResponseSummary(Struct, frozen=True, kw_only=True):
    """A kept response, without its content. Instants are in seconds since the Unix epoch. `kept_for`: `chain` is only
    for those that go on from it."""

    id: ResponseName
    object: Literal["response.summary"] = "response.summary"
    created_at: int
    expires_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    kept_for: Literal["chain", "stored", "background"]
    previous_response_id: ResponseName | None


class ResponseList(Page[ResponseSummary], frozen=True):
    """A page of kept responses."""


class DeletedResponse(Struct, frozen=True, kw_only=True):
    """A response that was deleted."""

    id: ResponseName
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItems(Struct, frozen=True, kw_only=True):
    """A page of the items of a response's input, each as it was sent."""

    object: Literal["list"] = "list"
    data: Annotated[list[ItemJson], Meta(examples=[[json.loads(_ITEM)]])]
    first_id: Annotated[str | None, Meta(examples=["item_01934f6e0d2a7b3c8e51a9c4d7f60b120000"])]
    last_id: Annotated[str | None, Meta(examples=["item_01934f6e0d2a7b3c8e51a9c4d7f60b120000"])]
    has_more: bool


_STREAM = (
    query("stream", bool, "Whether to send the events, of a response in the background.", example=False),
    query("starting_after", int, "The number of the last event that is known.", example=41),
    query("include", str, "Passed over: everything is there.", example="reasoning.encrypted_content", repeated=True),
    query("include_obfuscation", bool, "Passed over: there is no padding.", example=False),
)
_ITEM_PAGE = (
    *page(),
    query("order", Literal["asc", "desc"], "In which order; `desc` without it.", example="desc"),
    _STREAM[2],
)


def stored_response_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    keeper, wait = gateway.response_keeper, gateway.questions.wait
    readable = partial(_readable, gateway)

    @get(
        "/v1/responses",
        opt=demands("inference", "project_key", dialect="openai") | describes(ResponseList, query=page()),
    )
    async def list_responses(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The project's kept responses, the newest first."""
        payer, parameters = project_payer(request.scope), Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        before = None if after is None else _id(after)
        found: list[ListedResponse] = []
        if keeper.store is not None:
            found = await wait(keeper.store.page(payer.tenant_id, payer.project_id, limit=limit + 1, before=before))
        return json_response(ResponseList(data=[summary(one) for one in found[:limit]], has_more=len(found) > limit))

    @get(
        "/v1/responses/{name:str}",
        opt=demands("inference", "project_key", dialect="openai")
        | describes(Events(EVENT_TYPES, EVENTS_EXAMPLE, EXAMPLE), query=_STREAM),
    )
    async def retrieve_response(request: Request[Any, Any, Any], name: FromPath[str]) -> ASGIApp:
        """A kept response, or the events of one in the background from where a client left off."""
        payer, parameters = project_payer(request.scope), Parameters.of(request)
        stream, after = parameters.boolean("stream"), parameters.integer("starting_after")
        for ignored in ("include", "include_obfuscation"):
            parameters.texts(ignored)
        parameters.reject_unknown()
        if after is not None and not stream:
            raise InvalidField("starting_after", "it needs stream to be true")
        with gateway.bodies.share(payer.tenant_id) as share:
            stored = await readable(request, name, share)
            if not stream:
                return ASGIResponse(body=shown(stored), media_type=MediaType.JSON)
        if stored.kind != "background":
            raise InvalidField("stream", "only the events of a response in the background are kept")
        return ResponseEvents(gateway, payer.tenant_id, payer.project_id, name, -1 if after is None else after)

    @delete(
        "/v1/responses/{name:str}",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai") | describes(DeletedResponse),
    )
    async def delete_response(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Delete a kept response, whatever it is kept for. One that runs ends."""
        payer, id_ = project_payer(request.scope), _id(name)
        store = keeper.store
        if store is None or not await wait(store.delete(payer.tenant_id, payer.project_id, id_)):
            raise unknown(name)
        return json_response(DeletedResponse(id=name))

    @post(
        "/v1/responses/{name:str}/cancel",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai") | describes(EXAMPLE),
    )
    async def cancel_response(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """End a response in the background. One that has ended stays as it is."""
        payer = project_payer(request.scope)
        with gateway.bodies.share(payer.tenant_id) as share:
            stored = await readable(request, name, share)
        if stored.kind != "background" or gateway.background_responses is None:
            raise InvalidField("id", "only a response in the background can be cancelled")
        return json_response(shown(await gateway.background_responses.cancel(payer.tenant_id, payer.project_id, name)))

    return [list_responses, retrieve_response, delete_response, cancel_response, _input_items(gateway)]


def _input_items(gateway: Gateway) -> HTTPRouteHandler:
    @get(
        "/v1/responses/{name:str}/input_items",
        opt=demands("inference", "project_key", dialect="openai") | describes(InputItems, query=_ITEM_PAGE),
    )
    async def list_input_items(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """The items of a kept response's own input; those of earlier responses are theirs."""
        parameters = Parameters.of(request)
        limit, after, order = (
            parameters.page_size(),
            parameters.text("after"),
            parameters.choice("order", ("asc", "desc")),
        )
        parameters.texts("include")
        parameters.reject_unknown()
        tenant = project_payer(request.scope).tenant_id
        with gateway.bodies.share(tenant) as share:
            stored = await _readable(gateway, request, name, share)
            work = partial(_page_of_items, stored, limit=limit, after=after, ascending=order == "asc")
            large = len(stored.request) > LARGE_BYTES
            return json_response(await gateway.threads.run(tenant, work) if large else work())

    return list_input_items


def _page_of_items(stored: StoredResponse, *, limit: int, after: str | None, ascending: bool) -> InputItems:
    """A page of the items of a response's own input. Raises InvalidField."""
    items = list(map(listed, input_of(stored)))
    if not ascending:
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidField("after", "there is no such item")
        items = items[ids.index(after) + 1 :]
    shown_items = items[:limit]
    return InputItems(
        data=raw_items(shown_items),
        first_id=shown_items[0]["id"] if shown_items else None,
        last_id=shown_items[-1]["id"] if shown_items else None,
        has_more=len(items) > limit,
    )


async def _readable(gateway: Gateway, request: Request[Any, Any, Any], name: str, share: BodyShare) -> StoredResponse:
    payer = project_payer(request.scope)
    stored = await gateway.response_keeper.get(payer.tenant_id, payer.project_id, name, share.load)
    if stored.kind == "chain":
        raise NotFound(
            f"The response {name!r} is kept only for requests that go on from it (previous_response_id); "
            "with store: true it could be read."
        )
    return stored


def raw_items(items: Sequence[dict[str, Any]]) -> list[msgspec.Raw]:
    """The items, as a struct has them."""
    return [msgspec.Raw(msgspec.json.encode(item)) for item in items]


def shown(stored: StoredResponse) -> bytes:
    """The object of a response, in the state that it is in."""
    if stored.status not in RUNNING:
        return stored.response
    response = msgspec.json.decode(stored.response)
    return msgspec.json.encode(response | {"status": stored.status})


def summary(one: ListedResponse) -> ResponseSummary:
    """A response as a list shows it."""
    return ResponseSummary(
        id=f"{PREFIX}{one.id.hex}",
        created_at=one.created_at // 1_000_000,
        expires_at=one.expires_at // 1_000_000,
        status=one.status,
        model=one.model,
        kept_for=one.kind,
        previous_response_id=None if one.previous_id is None else f"{PREFIX}{one.previous_id.hex}",
    )


def _id(name: str) -> UUID:
    found = response_id_of(name)
    if found is None:
        raise unknown(name)
    return found
