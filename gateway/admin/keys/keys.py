"""/admin/v1/tenants/{tenant}/keys: the keys of a tenant and its projects. A key never gives more than its maker has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, UnsetType
from msgspec.structs import replace

from gateway.admin.access import PartOfTenant, project_named, refusal
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
    check_future,
    key_errors,
    key_object,
    limits_of,
)
from gateway.admin.operation import Call, Query, operation
from gateway.errors import InvalidField
from gateway.http.policies import demands
from gateway.http.shapes import PageQuery
from gateway.services import Gateway
from tenancy.repositories import KeyChange, NoSuchRecord, grant_of
from tenancy.rights.delegation import KeyGrant, check_delegation, may_end
from tenancy.rights.permissions import Permission
from tenancy.tables import ApiKey

_PATH, _ONE = "/admin/v1/tenants/{tenant:str}/keys", "/admin/v1/tenants/{tenant:str}/keys/{key:str}"
_EXAMPLE = NewKey(project="default", name="search", scopes=("inference", "models.read"), models=("stdlib-qa",))
_TOO_MUCH = {"exceeds_own_rights": 403}
_ENDED = {**_TOO_MUCH, "wrong_state": 409}
CREATED = {KeyCheck: 200, KeyWithSecret: 201}
Reason: TypeAlias = Annotated[str, Meta(max_length=500), Query("Why; kept in the audit log.", example="leaked")]
Leaked: TypeAlias = Annotated[
    bool, Query("Whether somebody else may have it; then the batches that it ordered are stopped.", example=True)
]
Value = TypeVar("Value")


class KeyOperations:
    """Lists, makes, changes and revokes keys of a tenant."""

    errors = staticmethod(key_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._tenancy = gateway.services.tenancy

    @operation("GET", _PATH, demands("keys.read"))
    async def list_keys(
        self,
        call: Call,
        tenant: PartOfTenant,
        project: Annotated[str | None, Query("Only keys of this project.", example="default")] = None,
        *,
        page: PageQuery,
    ) -> KeyList:
        """The keys of the tenant and its projects that you may see, with revoked ones, the newest first."""
        owner, projects = tenant
        only = None if project is None else await project_named(call.gateway, owner.id, project)
        if project is not None and (only is None or (projects is not None and only.id not in projects)):
            raise InvalidField("project", "there is no such project")
        keys = [
            key
            for key in reversed(await self._tenancy.list_keys(owner.id))
            if (projects is None or key.project_id in projects) and (only is None or key.project_id == only.id)
        ]
        return page_of_keys(keys, page)

    @operation("POST", _PATH, demands("keys.write"), status=CREATED, example=_EXAMPLE, errors=_TOO_MUCH)
    async def create_key(self, call: Call, tenant: PartOfTenant, body: NewKey) -> KeyCheck | KeyWithSecret:
        """Create a key. The answer has the whole key, which is shown this once."""
        owner, allowed = tenant
        project = None if body.project is None else await project_named(call.gateway, owner.id, body.project)
        if body.project is not None and (project is None or (allowed is not None and project.id not in allowed)):
            raise InvalidField("$.project", "there is no such project")
        if project is not None and body.role is not None:
            raise InvalidField("$.role", "only a key without a project has a role")
        if project is None and allowed is not None:
            raise refusal("keys.write")
        project_id, role = None if project is None else project.id, body.role or "owner"
        expires_at = check_future("expires_at", body.expires_at)
        limits = limits_of(body)
        grant = KeyGrant("project" if project else "admin", owner.id, project_id, role, limits, expires_at)
        check_delegation(call.principal, grant)
        grant.check_scopes(body.scopes or ())
        if body.dry_run:
            return KeyCheck(permissions=sorted(grant.permissions()))
        issued = await self._tenancy.create_key(
            owner.id, project_id, body.name, expires_at=expires_at, role=role, limits=limits
        )
        return with_secret(await self._tenancy.key(issued.public_id, owner.id), issued.key)

    @operation("GET", _ONE, demands("keys.read"))
    async def retrieve_key(self, call: Call, tenant: PartOfTenant, key: str) -> KeyObject:
        """One key, without its secret."""
        return key_object((await self._visible(call, tenant, key, "keys.read"))[1])

    @operation("PATCH", _ONE, demands("keys.write"), example=KeyPatch(name="search, staging"), errors=_ENDED)
    async def change_key(self, call: Call, tenant: PartOfTenant, key: str, body: KeyPatch) -> KeyObject:
        """Change a key's name, end or limits, everywhere within a second. What is left out stays."""
        owner, row = await self._visible(call, tenant, key, "keys.write")
        change = change_of(body, row)
        after = changed_grant(row, change)
        check_delegation(call.principal, after)
        after.check_scopes(body.scopes or ())
        return key_object(await self._tenancy.change_key(key, change, owner, body.reason))

    @operation(
        "POST",
        f"{_ONE}/rotate",
        demands("keys.write"),
        example=Rotation(reason="yearly"),
        body_required=False,
        errors=_ENDED,
    )
    async def rotate_key(self, call: Call, tenant: PartOfTenant, key: str, body: Rotation) -> KeyWithSecret:
        """Give a key a new secret. The present one is valid until a stated instant, by default for a day."""
        owner, row = await self._visible(call, tenant, key, "keys.write")
        check_delegation(call.principal, grant_of(row))
        issued, rotated = await self._tenancy.rotate_key(key, owner, until=overlap_end(body), reason=body.reason)
        return with_secret(rotated, issued.key)

    @operation("DELETE", _ONE, demands("keys.write"), errors=_TOO_MUCH)
    async def revoke_key(
        self, call: Call, tenant: PartOfTenant, key: str, reason: Reason = "", *, leaked: Leaked = False
    ) -> KeyObject:
        """Revoke a key for good, everywhere within a second. Batches that it ordered go on, unless it was leaked; this
        may be said of a key later, too."""
        owner, row = await self._visible(call, tenant, key, "keys.write")
        if not may_end(call.principal, grant_of(row)):
            raise refusal("keys.write")
        await self._tenancy.revoke(key, owner, reason, leaked=leaked)
        return key_object(await self._tenancy.key(key, owner))

    async def _visible(self, call: Call, tenant: PartOfTenant, key: str, permission: Permission) -> tuple[UUID, ApiKey]:
        """The id of the tenant of a path, and the key; one that the principal may not see is not there."""
        owner, _ = tenant
        row = await self._tenancy.key(key, owner.id)
        if not call.principal.may("keys.read", owner.id, row.project_id):
            raise NoSuchRecord(f"there is no key {key!r}")
        if not call.principal.may(permission, owner.id, row.project_id):
            raise refusal(permission)
        return owner.id, row


def page_of_keys(keys: Sequence[ApiKey], page: PageQuery) -> KeyList:
    """A page of all these keys."""
    rest = page.rest(keys, lambda key: key.public_id, str, "key")
    return KeyList.of([key_object(key) for key in rest[: page.limit + 1]], page.limit)


def with_secret(key: ApiKey, whole: str) -> KeyWithSecret:
    """A key in the one answer that has its secret."""
    return KeyWithSecret(**msgspec.structs.asdict(key_object(key)), key=whole)


def overlap_end(body: Rotation) -> int:
    """Until when the present secret is valid, in microseconds since the Unix epoch."""
    stated = body.old_secret_until
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


def _set(value: Value | UnsetType, default: Value) -> Value:
    return default if isinstance(value, UnsetType) else value
