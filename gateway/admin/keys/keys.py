"""/admin/v1/tenants/{tenant}/keys: the keys of a tenant and its projects. A key never gives more than its maker has."""

from __future__ import annotations

import time
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, UnsetType
from msgspec.structs import replace

from gateway.admin.access import partly_visible_tenant, principal_of, project_named, refusal
from gateway.admin.keys.key_objects import (
    DEFAULT_OVERLAP_S,
    KeyCheck,
    KeyList,
    KeyObject,
    KeyPatch,
    KeyWithSecret,
    NewKey,
    Rotation,
    change_of,
    future_instant,
    instant,
    key_errors,
    key_object,
    limits_of,
)
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField
from gateway.http.operations import describes, page, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.free_text import problem_of_text
from tenancy.repositories import KeyChange, NoSuchRecord, grant_of
from tenancy.rights.delegation import KeyGrant, check_delegation, may_end
from tenancy.rights.permissions import Permission
from tenancy.tables import ApiKey

_NEW, _PATCH = msgspec.json.Decoder(NewKey), msgspec.json.Decoder(KeyPatch)
_ROTATION = msgspec.json.Decoder(Rotation)
_PATH, _ONE = "/admin/v1/tenants/{tenant:str}/keys", "/admin/v1/tenants/{tenant:str}/keys/{key:str}"
_EXAMPLE = NewKey(project="default", name="search", scopes=("inference", "models.read"), models=("stdlib-qa",))
_TOO_MUCH = {"exceeds_own_rights": 403}
_ENDED = {**_TOO_MUCH, "wrong_state": 409}
REASON = query("reason", Annotated[str, Meta(max_length=500)], "Why; kept in the audit log.", example="leaked")
Value = TypeVar("Value")


def key_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # six routes
    """The routes, for one worker."""
    tenancy, client_timeout = gateway.services.tenancy, gateway.services.options.client_timeout

    async def visible_key(
        request: Request[Any, Any, Any], tenant: str, key: str, permission: Permission
    ) -> tuple[UUID, ApiKey]:
        """The id of the tenant of a path, and the key; one that the principal may not see is not there."""
        owner, _ = await partly_visible_tenant(gateway, request, tenant, permission)
        principal = principal_of(request)
        with key_errors():
            found = await tenancy.key(key, owner.id)
        if not principal.may("keys.read", owner.id, found.project_id):
            with key_errors():
                raise NoSuchRecord(f"there is no key {key!r}")
        if not principal.may(permission, owner.id, found.project_id):
            raise refusal(permission)
        return owner.id, found

    @get(
        _PATH,
        opt=demands("keys.read")
        | describes(KeyList, query=(query("project", str, "Only keys of this project.", example="default"), *page())),
    )
    async def list_keys(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """The keys of the tenant and its projects that you may see, with revoked ones, the newest first."""
        owner, projects = await partly_visible_tenant(gateway, request, tenant, "keys.read")
        parameters = Parameters.of(request)
        project, limit, after = parameters.text("project"), parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        only = None if project is None else await project_named(gateway, owner.id, project)
        if project is not None and (only is None or (projects is not None and only.id not in projects)):
            raise InvalidField("project", "there is no such project")
        found = [
            key
            for key in reversed(await tenancy.list_keys(owner.id))
            if (projects is None or key.project_id in projects) and (only is None or key.project_id == only.id)
        ]
        return json_response(page_of_keys(found, limit, after))

    @post(
        _PATH,
        status_code=201,
        opt=demands("keys.write") | describes({200: KeyCheck, 201: KeyWithSecret}, body=_EXAMPLE, errors=_TOO_MUCH),
    )
    async def create_key(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        """Create a key. The answer has the whole key, which is shown this once."""
        owner, allowed = await partly_visible_tenant(gateway, request, tenant, "keys.write")
        body = await read_management_body(request, client_timeout, _NEW)
        project = None if body.project is None else await project_named(gateway, owner.id, body.project)
        if body.project is not None and (project is None or (allowed is not None and project.id not in allowed)):
            raise InvalidField("$.project", "there is no such project")
        if project is not None and body.role is not None:
            raise InvalidField("$.role", "only a key without a project has a role")
        if project is None and allowed is not None:
            raise refusal("keys.write")
        project_id, role = None if project is None else project.id, body.role or "owner"
        expires_at = future_instant("expires_at", body.expires_at)
        with key_errors():
            limits = limits_of(body)
            grant = KeyGrant("project" if project else "admin", owner.id, project_id, role, limits, expires_at)
            check_delegation(principal_of(request), grant)
            grant.check_scopes(body.scopes or ())
            if body.dry_run:
                return json_response(KeyCheck(permissions=sorted(grant.permissions())))
            creating = tenancy.create_key(
                owner.id, project_id, body.name, expires_at=expires_at, role=role, limits=limits
            )
            issued = await creating
            made = await tenancy.key(issued.public_id, owner.id)
        return json_response(with_secret(made, issued.key), 201)

    @get(_ONE, opt=demands("keys.read") | describes(KeyObject))
    async def retrieve_key(
        request: Request[Any, Any, Any], tenant: FromPath[str], key: FromPath[str]
    ) -> Response[bytes]:
        """One key, without its secret."""
        _, found = await visible_key(request, tenant, key, "keys.read")
        return json_response(key_object(found))

    @patch(
        _ONE,
        opt=demands("keys.write") | describes(KeyObject, body=KeyPatch(name="search, staging"), errors=_ENDED),
    )
    async def change_key(request: Request[Any, Any, Any], tenant: FromPath[str], key: FromPath[str]) -> Response[bytes]:
        """Change a key's name, end or limits, everywhere within a second. What is left out stays."""
        owner, found = await visible_key(request, tenant, key, "keys.write")
        body = await read_management_body(request, client_timeout, _PATCH)
        with key_errors():
            change = change_of(body, found)
            after = changed_grant(found, change)
            check_delegation(principal_of(request), after)
            after.check_scopes(body.scopes or ())
            return json_response(key_object(await tenancy.change_key(key, change, owner, body.reason)))

    @post(
        f"{_ONE}/rotate",
        status_code=200,
        opt=demands("keys.write")
        | describes(KeyWithSecret, body=Rotation(reason="yearly"), body_required=False, errors=_ENDED),
    )
    async def rotate_key(request: Request[Any, Any, Any], tenant: FromPath[str], key: FromPath[str]) -> Response[bytes]:
        """Give a key a new secret. The present one is valid until a stated instant, by default for a day."""
        owner, found = await visible_key(request, tenant, key, "keys.write")
        body = await read_management_body(request, client_timeout, _ROTATION, default=b"{}")
        with key_errors():
            check_delegation(principal_of(request), grant_of(found))
            rotating = tenancy.rotate_key(key, owner, until=overlap_end(body), reason=body.reason)
            issued, rotated = await rotating
        return json_response(with_secret(rotated, issued.key))

    @delete(
        _ONE,
        status_code=200,
        opt=demands("keys.write") | describes(KeyObject, query=(REASON,), errors=_TOO_MUCH),
    )
    async def revoke_key(request: Request[Any, Any, Any], tenant: FromPath[str], key: FromPath[str]) -> Response[bytes]:
        """Revoke a key for good, everywhere within a second."""
        owner, found = await visible_key(request, tenant, key, "keys.write")
        reason = reason_of(request)
        if not may_end(principal_of(request), grant_of(found)):
            raise refusal("keys.write")
        with key_errors():
            await tenancy.revoke(key, owner, reason)
            return json_response(key_object(await tenancy.key(key, owner)))

    return [list_keys, create_key, retrieve_key, change_key, rotate_key, revoke_key]


def page_of_keys(found: list[ApiKey], limit: int, after: str | None) -> KeyList:
    """A page of keys behind the one with the public id `after`. Raises InvalidField if there is no such key."""
    ids = [key.public_id for key in found]
    if after is not None and after not in ids:
        raise InvalidField("after", "there is no such key")
    first = 0 if after is None else ids.index(after) + 1
    listed = [key_object(key) for key in found[first : first + limit]]
    return KeyList(data=listed, has_more=len(found) > first + limit)


def with_secret(key: ApiKey, whole: str) -> KeyWithSecret:
    """A key in the one answer that has its secret."""
    return KeyWithSecret(**msgspec.structs.asdict(key_object(key)), key=whole)


def overlap_end(body: Rotation) -> int:
    """Until when the present secret is valid, in microseconds since the Unix epoch. Raises InvalidField."""
    stated = instant("old_secret_until", body.old_secret_until)
    return stated if stated is not None else time.time_ns() // 1000 + DEFAULT_OVERLAP_S * 1_000_000


def changed_grant(key: ApiKey, change: KeyChange) -> KeyGrant:
    """What a key gives after a change."""
    grant = grant_of(key)
    return replace(
        grant,
        role=_set(change.role, grant.role),
        limits=_set(change.limits, grant.limits),
        expires_at=_set(change.expires_at, grant.expires_at),
    )


def reason_of(request: Request[Any, Any, Any]) -> str:
    """The reason in the query of a request without a body. Raises InvalidField."""
    parameters = Parameters.of(request)
    reason = parameters.text("reason") or ""
    parameters.reject_unknown()
    if problem := problem_of_text(reason, 500, empty=True):
        raise InvalidField("reason", problem)
    return reason


def _set(value: Value | UnsetType, default: Value) -> Value:
    return default if isinstance(value, UnsetType) else value
