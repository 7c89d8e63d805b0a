"""/v1/caches: a project lists what the cache promised it, extends a promise, and ends promises.

An object is a lease: a prefix of the project's prompts, up to a marker. Ids of other projects are as unknown as ids
that never were.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, patch
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotFound
from gateway.generation_request import tag_of
from gateway.http.authentication import project_payer
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.services import Gateway
from prompt_cache.kv.block_keys import KEY_BYTES
from prompt_cache.promise.lease_decisions import LIFE_S, Lease
from prompt_cache.promise.lease_store import PurgedLeases

_PREFIX = "cache_"
_MOST_PURGED = 1000
_LONGEST_TAG = 512


class Extension(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an extension. `ttl`: the lease's own class, which may be left out."""

    ttl: str | None = None


CacheId: TypeAlias = Annotated[str, Meta(examples=["cache_01934f6e0d2a7b3c8e51a9c4d7f60b12"])]


class CacheObject(Struct, frozen=True, kw_only=True):
    """A lease. Instants are in seconds since the Unix epoch."""

    id: CacheId
    object: Literal["cache"] = "cache"
    model: str
    tokens: int
    ttl: str
    created_at: int
    expires_at: int
    last_read_at: int | None
    reads: int


class CacheList(Page[CacheObject], frozen=True):
    """A page of leases."""


class PurgedCache(Struct, frozen=True, kw_only=True):
    """A lease that was ended."""

    id: CacheId
    object: Literal["cache.deleted"] = "cache.deleted"
    deleted: bool = True


class PurgedCaches(Struct, frozen=True, kw_only=True):
    """`has_more`: there are more under this tag, so ask again."""

    object: Literal["cache.purge"] = "cache.purge"
    tag: str
    deleted: int
    has_more: bool


_TAG = query("tag", Annotated[str, Meta(min_length=1, max_length=_LONGEST_TAG)], "The label of the requests.")
_EXTENSION = msgspec.json.Decoder(Extension)


def cache_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    leases, client_timeout = gateway.leases, gateway.services.options.client_timeout

    def project_of(request: Request[Any, Any, Any]) -> UUID:
        return project_payer(request.scope).project_id

    def purge_blocks(gone: PurgedLeases) -> None:
        models = {one.id: one.model for one in gone.leases}
        for blocks in gone.blocks:
            keys = tuple(blocks.keys[at : at + KEY_BYTES] for at in range(0, len(blocks.keys), KEY_BYTES))
            gateway.services.fleet.purge(models[blocks.lease_id], blocks.scope, keys)

    @get("/v1/caches", opt=demands("caches.read", "project_key") | describes(CacheList, query=(*page(), _TAG)))
    async def list_caches(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The project's live leases, the newest first."""
        project = project_of(request)
        parameters = Parameters.of(request)
        limit, after, tag = parameters.page_size(), parameters.text("after"), _tag(parameters)
        parameters.reject_unknown()
        before = None if after is None else _id(after)
        found = await leases.page(project, limit=limit + 1, after=before, tag=tag)
        return json_response(CacheList(data=[_object(one) for one in found[:limit]], has_more=len(found) > limit))

    @get("/v1/caches/{name:str}", opt=demands("caches.read", "project_key") | describes(CacheObject))
    async def retrieve_cache(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One lease."""
        return json_response(_object(_known(await leases.get(project_of(request), _id(name)), name)))

    @patch(
        "/v1/caches/{name:str}",
        opt=demands("caches.write", "project_key")
        | describes(CacheObject, body=Extension(ttl="1h"), body_required=False),
    )
    async def extend_cache(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """Begin a lease's life anew, at no charge, as a read does."""
        project = project_of(request)
        body = await read_management_body(request, client_timeout, _EXTENSION, default=b"{}")
        if body.ttl is not None and body.ttl not in LIFE_S:
            raise InvalidField("$.ttl", f"{body.ttl[:40]!r} is not one of {', '.join(LIFE_S)}")
        found = _known(await leases.get(project, _id(name)), name)
        if body.ttl is not None and body.ttl != found.lease_class:
            raise InvalidField(
                "$.ttl",
                f"this cache was written for {found.lease_class}, and is extended by that; "
                "another ttl is a write, which a request with a marker of that ttl makes once this one has ended",
            )
        return json_response(_object(_known(await leases.extend(project, found.id), name)))

    @delete(
        "/v1/caches/{name:str}", status_code=200, opt=demands("caches.write", "project_key") | describes(PurgedCache)
    )
    async def purge_cache(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """End a lease."""
        identity = _id(name)
        gone = await leases.purge(project_of(request), identity=identity)
        _known(gone.leases[0] if gone.leases else None, name)
        purge_blocks(gone)
        return json_response(PurgedCache(id=_name(identity)))

    @delete(
        "/v1/caches",
        status_code=200,
        opt=demands("caches.write", "project_key") | describes(PurgedCaches, query=[replace(_TAG, required=True)]),
    )
    async def purge_caches(request: Request[Any, Any, Any]) -> Response[bytes]:
        """End the leases with a tag."""
        project = project_of(request)
        parameters = Parameters.of(request)
        parameters.required("tag")
        tag = _tag(parameters)
        parameters.reject_unknown()
        gone = await leases.purge(project, tag=tag, most=_MOST_PURGED)
        purge_blocks(gone)
        ended = len(gone.leases)
        return json_response(PurgedCaches(tag=tag or "", deleted=ended, has_more=ended == _MOST_PURGED))

    return [list_caches, retrieve_cache, extend_cache, purge_cache, purge_caches]


def _tag(parameters: Parameters) -> str | None:
    tag = parameters.text("tag")
    if tag is not None and not 0 < len(tag) <= _LONGEST_TAG:
        raise InvalidField("tag", f"it must have from 1 to {_LONGEST_TAG} characters")
    return None if tag is None else tag_of(tag)


def _name(identity: UUID) -> str:
    return f"{_PREFIX}{identity.hex}"


def _id(name: str) -> UUID:
    try:
        if name.startswith(_PREFIX):
            return UUID(name.removeprefix(_PREFIX))
    except ValueError:
        pass
    raise _unknown(name)


def _known(found: Lease | None, name: str) -> Lease:
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no cache {name[:80]!r}.")


def _object(one: Lease) -> CacheObject:
    return CacheObject(
        id=_name(one.id),
        model=one.model,
        tokens=one.tokens,
        ttl=one.lease_class,
        created_at=one.created_at // 1_000_000,
        expires_at=one.expires_at // 1_000_000,
        last_read_at=None if one.read_at is None else one.read_at // 1_000_000,
        reads=one.reads,
    )
