"""/admin/v1/limits: the rate limits of projects and of keys.

Operators see and change all of them, a tenant's administrators those of their own tenant.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from msgspec import Meta, Struct
from msgspec.structs import asdict

from gateway.admin.access import check_may_change
from gateway.admin.operation import Call, Query, operation
from gateway.errors import InvalidField, InvalidRequest, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import ProjectId, TenantId
from gateway.services import Gateway
from storage.database.public_ids import prefixed_id
from storage.free_text import REASON, problem_of_text
from tenancy.directory import PROJECT_PREFIX, TENANT_PREFIX
from tenancy.rate_limits import FIELDS, InvalidLimit, Limits, LimitScope, LimitSubject, SubjectLimits
from tenancy.repositories import NoSuchRecord
from tenancy.rights.permissions import Permission

_EXAMPLE_HEX = "01934f6e0d2a7b3c8e51a9c4d7f60b12"


class NewLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a change: all limits of the project or key; one that is absent or null is no limit. `reason` is
    recorded."""

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    reason: str = ""


class LimitsObject(Struct, frozen=True, kw_only=True):
    """The limits of a project, or of one of its keys. Input tokens that were read from the cache do not count."""

    object: Literal["rate_limits"] = "rate_limits"
    scope: LimitScope
    tenant_id: Annotated[TenantId, Meta(examples=[f"{TENANT_PREFIX}{_EXAMPLE_HEX}"])]
    tenant: str
    project_id: Annotated[ProjectId, Meta(examples=[f"{PROJECT_PREFIX}{_EXAMPLE_HEX}"])]
    project: str
    key: str | None
    requests_per_minute: Annotated[int | None, Meta(examples=[600])]
    input_tokens_per_minute: Annotated[int | None, Meta(examples=[200000])]
    output_tokens_per_minute: Annotated[int | None, Meta(examples=[40000])]
    concurrent_requests: Annotated[int | None, Meta(examples=[32])]


class LimitsList(Struct, frozen=True, kw_only=True):
    """Limits, by tenant and project: a project's own before those of its keys."""

    object: Literal["list"] = "list"
    data: list[LimitsObject]


class RemovedLimits(Struct, frozen=True, kw_only=True):
    """What a removal answers."""

    object: Literal["rate_limits.deleted"] = "rate_limits.deleted"
    deleted: bool = True


_EXAMPLE = NewLimits(600, 200_000, 40_000, 32, "agreed with the customer")
_OF_PROJECT, _OF_KEY = "/admin/v1/limits/projects/{project:str}", "/admin/v1/limits/keys/{key:str}"
_PROJECT = {"project": f"{PROJECT_PREFIX}{_EXAMPLE_HEX}"}
Reason: TypeAlias = Annotated[str, Meta(max_length=REASON), Query("Why; kept in the audit log.", example="trial ended")]


class LimitOperations:
    """Lists, sets and removes rate limits."""

    def __init__(self, gateway: Gateway) -> None:
        self._limits = gateway.services.rate_limits

    @operation("GET", "/admin/v1/limits", demands("limits.read"))
    async def list_limits(
        self,
        call: Call,
        tenant_id: Annotated[
            str | None, Query("Only this tenant's: `tenant_<hex>`.", example=f"{TENANT_PREFIX}{_EXAMPLE_HEX}")
        ] = None,
        project_id: Annotated[
            str | None,
            Query("Only this project's, `project_<hex>`, and those of its keys.", example=_PROJECT["project"]),
        ] = None,
    ) -> LimitsList:
        """All limits that the caller may see, or those of one tenant or project."""
        tenant, project = _id("tenant_id", tenant_id, TENANT_PREFIX), _id("project_id", project_id, PROJECT_PREFIX)
        listed = await self._limits.list(tenant_id=tenant or call.principal.tenant_id, project_id=project)
        may = call.principal.may
        return LimitsList(
            data=[_object(each) for each in listed if may("limits.read", each.tenant_id, each.project_id)]
        )

    @operation("GET", _OF_PROJECT, demands("limits.read"), path=_PROJECT)
    async def retrieve_project_limits(self, call: Call, project: str) -> LimitsObject:
        """The limits of a project."""
        return await self._read(await self._project(call, project, "limits.read"))

    @operation("PUT", _OF_PROJECT, demands("limits.write"), example=_EXAMPLE, path=_PROJECT)
    async def set_project_limits(self, call: Call, project: str, body: NewLimits) -> LimitsObject:
        """Set all limits of a project."""
        return await self._set(await self._project(call, project, "limits.write"), body)

    @operation("DELETE", _OF_PROJECT, demands("limits.write"), path=_PROJECT)
    async def remove_project_limits(self, call: Call, project: str, reason: Reason = "") -> RemovedLimits:
        """Remove the limits of a project; its keys keep theirs."""
        return await self._remove(await self._project(call, project, "limits.write"), reason)

    @operation("GET", _OF_KEY, demands("limits.read"))
    async def retrieve_key_limits(self, call: Call, key: str) -> LimitsObject:
        """The limits of a key, by its public id."""
        return await self._read(await self._key(call, key, "limits.read"))

    @operation("PUT", _OF_KEY, demands("limits.write"), example=_EXAMPLE)
    async def set_key_limits(self, call: Call, key: str, body: NewLimits) -> LimitsObject:
        """Set all limits of a key; those of its project apply beside them."""
        return await self._set(await self._key(call, key, "limits.write"), body)

    @operation("DELETE", _OF_KEY, demands("limits.write"))
    async def remove_key_limits(self, call: Call, key: str, reason: Reason = "") -> RemovedLimits:
        """Remove the limits of a key."""
        return await self._remove(await self._key(call, key, "limits.write"), reason)

    async def _project(self, call: Call, project: str, permission: Permission) -> LimitSubject:
        project_id = prefixed_id(project, PROJECT_PREFIX)
        if project_id is None:
            raise _no_such("project")
        return await _permitted(call, self._limits.subject_of_project(project_id), permission, "project")

    async def _key(self, call: Call, key: str, permission: Permission) -> LimitSubject:
        return await _permitted(call, self._limits.subject_of_key(key), permission, "key")

    async def _read(self, subject: LimitSubject) -> LimitsObject:
        limits = await self._limits.get(subject)
        if limits is None:
            raise NotFound("No limits are set.")
        return _object(limits)

    async def _set(self, subject: LimitSubject, body: NewLimits) -> LimitsObject:
        if problem := problem_of_text(body.reason, REASON, empty=True):
            raise InvalidField("$.reason", problem)
        try:
            await self._limits.set(subject, Limits(**{name: getattr(body, name) for name in FIELDS}), body.reason)
        except InvalidLimit as error:
            raise InvalidRequest(f"$.{error}.", path=f"$.{error.field}", code="invalid_value") from error
        return await self._read(subject)

    async def _remove(self, subject: LimitSubject, reason: str) -> RemovedLimits:
        if await self._limits.remove(subject, reason) is None:
            raise NotFound("No limits are set.")
        return RemovedLimits()


async def _permitted(call: Call, reading: Awaitable[LimitSubject], permission: Permission, kind: str) -> LimitSubject:
    """The subject, if the caller may do this to it. Raises NotFound otherwise, as for one that does not exist;
    SuspendedError."""
    try:
        subject = await reading
    except NoSuchRecord as error:
        raise _no_such(kind) from error
    if not call.principal.may(permission, subject.tenant_id, subject.project_id):
        raise _no_such(kind)
    check_may_change(call.gateway, call.request, subject.tenant_id)
    return subject


def _id(parameter: str, text: str | None, prefix: str) -> UUID | None:
    """The id in a parameter, None if it is absent. Raises InvalidField."""
    identity = None if text is None else prefixed_id(text, prefix)
    if text is not None and identity is None:
        raise InvalidField(parameter, f"not an id such as {prefix}{_EXAMPLE_HEX}")
    return identity


def _no_such(kind: str) -> NotFound:
    return NotFound(f"There is no such {kind}.")


def _object(limits: SubjectLimits) -> LimitsObject:
    return LimitsObject(
        scope=limits.scope,
        tenant_id=TenantId.of(limits.tenant_id),
        tenant=limits.tenant,
        project_id=ProjectId.of(limits.project_id),
        project=limits.project,
        key=limits.key,
        **asdict(limits.limits),
    )
